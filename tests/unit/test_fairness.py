"""Fairness: bands, deadlines, tenants' virtual counters, area with ageing, and their bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.fairness import FairQueue, Waiting
from governor.core.outcomes import Priority

SECOND = 1_000_000


class Builder:
    """Waiting requests, numbered in the order in which they are made."""

    def __init__(self) -> None:
        self.seq = 0

    def __call__(
        self,
        name: str,
        *,
        tenant: str = "t",
        band: Priority = Priority.NORMAL,
        area: int = 100,
        arrived_us: int = 0,
        latest_start_us: int | None = None,
    ) -> Waiting:
        self.seq += 1
        return Waiting(name, tenant, band, area, arrived_us, self.seq, 30 * SECOND, latest_start_us)


@pytest.fixture
def waiting() -> Builder:
    return Builder()


def names(queue: FairQueue) -> list[str]:
    return [found.request_id for found in queue.order(())]


def test_higher_bands_come_first(waiting: Builder) -> None:
    queue = FairQueue()
    for band in reversed(Priority):
        queue.add(waiting(band.name, band=band))
    assert names(queue) == [band.name for band in Priority]


def test_deadlines_come_before_the_rest_of_their_band_by_least_laxity(waiting: Builder) -> None:
    queue = FairQueue()
    queue.add(waiting("plain", area=1))
    queue.add(waiting("late", latest_start_us=9 * SECOND))
    queue.add(waiting("soon", latest_start_us=2 * SECOND, area=10_000))
    queue.add(waiting("high", band=Priority.HIGH))
    assert names(queue) == ["high", "soon", "late", "plain"]


def test_smaller_areas_come_first_and_equal_ones_by_arrival(waiting: Builder) -> None:
    queue = FairQueue()
    for name, area in (("big", 900), ("first", 100), ("second", 100), ("small", 10)):
        queue.add(waiting(name, area=area))
    assert names(queue) == ["small", "first", "second", "big"]


def test_age_lets_a_large_request_pass_small_ones_that_come_later(waiting: Builder) -> None:
    queue = FairQueue()
    queue.add(waiting("large", area=5_000))
    queue.add(waiting("early", area=100, arrived_us=SECOND))
    queue.add(waiting("late", area=100, arrived_us=29 * SECOND))
    assert names(queue) == ["early", "large", "late"]


def test_the_tenant_with_the_lowest_counter_goes_first_by_weight(waiting: Builder) -> None:
    queue = FairQueue()
    queue.charge("heavy", 1_000, 10.0)
    queue.charge("light", 1_000, 1.0)
    queue.add(waiting("l", tenant="light"))
    queue.add(waiting("h", tenant="heavy"))
    # `heavy` joins while `light` waits and is lifted to it; equal counters go by arrival.
    assert names(queue) == ["l", "h"]
    queue.charge("light", 1, 1.0)
    assert names(queue) == ["h", "l"]


def test_idleness_earns_no_credit(waiting: Builder) -> None:
    queue = FairQueue()
    queue.add(waiting("a1", tenant="a"))
    queue.charge("a", 5_000, 1.0)
    queue.add(waiting("b1", tenant="b"))
    assert queue.counter("b") == queue.counter("a") == 5_000
    queue.remove("a1")
    queue.charge("b", 300, 1.0)
    queue.remove("b1")
    queue.add(waiting("c1", tenant="c"))
    assert queue.counter("c") == 5_300


def test_where_the_first_of_a_tenant_is_passed_over_the_others_firsts_come_next(
    waiting: Builder,
) -> None:
    queue = FairQueue()
    for name in ("a1", "a2", "a3"):
        queue.add(waiting(name, tenant="a"))
    queue.add(waiting("b1", tenant="b"))
    queue.charge("b", 1_000, 1.0)
    assert names(queue) == ["a1", "b1", "a2", "a3"]


def test_a_tenant_that_is_blocked_during_a_pass_is_left_out_of_the_rest(waiting: Builder) -> None:
    queue = FairQueue()
    for name, tenant in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b")):
        queue.add(waiting(name, tenant=tenant))
    blocked: set[str] = set()
    seen = []
    for found in queue.order(blocked):
        seen.append(found.request_id)
        if found.tenant == "a":
            blocked.add("a")
    assert seen == ["a1", "b1", "b2"]


def test_the_order_follows_dispatches_as_they_happen(waiting: Builder) -> None:
    queue = FairQueue()
    for index in range(3):
        queue.add(waiting(f"a{index}", tenant="a"))
        queue.add(waiting(f"b{index}", tenant="b"))
    served = []
    for found in queue.order(()):
        queue.remove(found.request_id)
        queue.charge(found.tenant, found.area, 1.0)
        served.append(found.request_id)
    assert served == ["a0", "b0", "a1", "b1", "a2", "b2"]
    assert len(queue) == 0
    assert queue.area == 0


@given(
    st.lists(st.integers(1, 1_000), min_size=60, max_size=60),
    st.lists(st.integers(1, 1_000), min_size=60, max_size=60),
)
def test_backlogged_tenants_never_differ_by_more_than_two_of_the_largest(
    ours: list[int], theirs: list[int]
) -> None:
    queue, make = FairQueue(), Builder()
    for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        queue.add(make(f"a{index}", tenant="a", area=a))
        queue.add(make(f"b{index}", tenant="b", area=b))
    served = {"a": 0, "b": 0}
    largest = max(*ours, *theirs)
    while queue.waiting_of("a") and queue.waiting_of("b"):
        found = next(queue.order(()))
        queue.remove(found.request_id)
        queue.charge(found.tenant, found.area, 1.0)
        served[found.tenant] += found.area
        assert abs(served["a"] - served["b"]) <= 2 * largest


@given(st.lists(st.integers(1, 1_000), min_size=80, max_size=80))
def test_weights_share_in_proportion(areas: list[int]) -> None:
    queue, make = FairQueue(), Builder()
    for index, area in enumerate(areas):
        queue.add(make(f"a{index}", tenant="a", area=area))
        queue.add(make(f"b{index}", tenant="b", area=area))
    served = {"a": 0, "b": 0}
    weights = {"a": 3.0, "b": 1.0}
    while queue.waiting_of("a") and queue.waiting_of("b"):
        found = next(queue.order(()))
        queue.remove(found.request_id)
        queue.charge(found.tenant, found.area, weights[found.tenant])
        served[found.tenant] += found.area
        assert abs(served["a"] / 3.0 - served["b"]) <= 2 * max(areas)


def test_a_position_is_a_place_in_the_order(waiting: Builder) -> None:
    queue = FairQueue()
    queue.add(waiting("second", area=50))
    queue.add(waiting("first", area=10))
    assert queue.position("first") == 1
    assert queue.position("second") == 2
    assert queue.position("second", most=1) == 2
    with pytest.raises(KeyError):
        queue.position("absent")


def test_an_id_cannot_wait_twice_and_an_absent_one_cannot_leave(waiting: Builder) -> None:
    queue = FairQueue()
    queue.add(waiting("a"))
    with pytest.raises(ValueError):
        queue.add(waiting("a"))
    assert queue.remove("b") is None
    assert len(queue) == 1


def test_counters_of_idle_tenants_are_bounded(
    waiting: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("governor.core.fairness.MAX_IDLE_TENANTS", 2)
    queue = FairQueue()
    for index in range(5):
        queue.add(waiting(f"r{index}", tenant=f"t{index}"))
        queue.charge(f"t{index}", index + 1, 1.0)
        queue.remove(f"r{index}")
    assert [queue.counter(f"t{index}") > 0 for index in range(5)].count(True) == 2
