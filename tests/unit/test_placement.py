"""Placement: the emptiest by predicted peak share, affinity within its slack, ties by the draw."""

from dataclasses import replace

from governor.core.outcomes import Reason
from governor.core.placement import Candidate, pick
from tests.admission_builders import loaded


def candidate(worker_id: str, peak: int | None, reason: Reason = Reason.FITS) -> Candidate:
    return Candidate(loaded(1, worker_id), reason, peak, 100)


def chosen(*candidates: Candidate, draw: float = 0.0, preferred: str | None = None) -> str | None:
    found = pick(candidates, draw, preferred=preferred, slack=0.1)
    return found.load.view.worker_id if found else None


def test_the_lowest_predicted_peak_share_wins() -> None:
    assert chosen(candidate("a", 60), candidate("b", 30), candidate("c", 50)) == "b"


def test_shares_are_compared_and_not_blocks() -> None:
    big = replace(candidate("big", 60), limit_milliblocks=1_000)
    assert chosen(candidate("small", 30), big) == "big"


def test_a_worker_that_does_not_fit_is_never_picked() -> None:
    assert chosen(candidate("a", 10, Reason.NO_HEADROOM), candidate("b", 90)) == "b"
    assert chosen(candidate("a", 10, Reason.DRAINING)) is None
    assert chosen() is None


def test_a_tie_is_broken_by_the_draw_whatever_the_order() -> None:
    tied = [candidate(name, 50) for name in "cab"]
    assert [chosen(*tied, draw=draw) for draw in (0.0, 0.4, 0.99)] == ["a", "b", "c"]
    assert chosen(*reversed(tied), draw=0.4) == "b"


def test_affinity_wins_within_its_slack_and_not_beyond() -> None:
    assert chosen(candidate("a", 30), candidate("b", 39), preferred="b") == "b"
    assert chosen(candidate("a", 30), candidate("b", 41), preferred="b") == "a"


def test_affinity_to_a_worker_without_room_is_ignored() -> None:
    full = candidate("b", 31, Reason.NO_HEADROOM)
    assert chosen(candidate("a", 30), full, preferred="b") == "a"


def test_workers_of_unknown_size_are_compared_by_what_they_run() -> None:
    few = replace(candidate("few", None), load=loaded(1, "few", in_flight=1))
    many = replace(candidate("many", None), load=loaded(1, "many", in_flight=3))
    assert chosen(many, few) == "few"
