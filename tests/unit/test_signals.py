"""Signals and control: codecs that tolerate additions, and the join of rows to each token once."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.errors import UpstreamProtocolError
from governor.core.signals import (
    ControlStatus,
    SignalFlag,
    SignalJoin,
    SignalRow,
    decode_ack,
    decode_batch,
    decode_control,
    encode_ack,
    encode_batch,
    encode_control,
)

GOLDEN = Path(__file__).parent.parent / "data" / "contracts"


def golden(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text(encoding="utf-8"))


def batch(*sent: Any, **more: Any) -> dict[str, Any]:
    base = {"schema": "governor.signals/1", "worker_epoch": "e", "seq": 1, "rows": list(sent)}
    return {**base, **more}


def row(position: int, tokens: int, attempt: int = 0) -> SignalRow:
    return SignalRow("r", attempt, position, tuple(range(position - tokens, position)))


def test_golden_messages_survive_a_round_trip() -> None:
    assert encode_batch(decode_batch(golden("signals.json"))) == golden("signals.json")
    for message in golden("control.json"):
        assert encode_control(decode_control(message)) == message
    for message in golden("control_ack.json"):
        assert encode_ack(decode_ack(message)) == message


def test_flags_of_the_golden_rows_are_understood() -> None:
    first, second, third = decode_batch(golden("signals.json")).rows
    assert (first.answering, first.landing, first.finished) == (False, False, False)
    assert second.landing
    assert second.flags & SignalFlag.GAP
    assert third.answering
    assert third.finished
    assert third.entropy is None


def test_further_columns_and_members_are_ignored() -> None:
    found = decode_batch(batch(["r", 0, 1, [5], 0.5, 1.5, None, 0, "new", {}], more=1))
    assert found.rows == (SignalRow("r", 0, 1, (5,), 0.5, 1.5, None, 0),)
    assert found.faults == 0


@pytest.mark.parametrize(
    "bad",
    [
        "row",
        None,
        ["r", 0, 1, [5], None, None, None],
        [7, 0, 1, [5], None, None, None, 0],
        ["r", -1, 1, [5], None, None, None, 0],
        ["r", 0, True, [5], None, None, None, 0],
        ["r", 0, 1, "5", None, None, None, 0],
        ["r", 0, 1, [5.5], None, None, None, 0],
        ["r", 0, 1, [5], None, None, None, None],
    ],
)
def test_an_unreadable_row_is_left_out_and_counted(bad: Any) -> None:
    found = decode_batch(batch(bad, ["r", 0, 1, [5], None, None, None, 0]))
    assert found.faults == 1
    assert [r.rid for r in found.rows] == ["r"]


@pytest.mark.parametrize("figure", ["1.0", True, [], float("nan"), float("inf"), 10**400])
def test_a_figure_that_is_no_finite_number_is_missing_and_never_zero(figure: Any) -> None:
    (found,) = decode_batch(batch(["r", 0, 1, [5], figure, figure, figure, 0])).rows
    assert (found.entropy, found.margin, found.value) == (None, None, None)


@pytest.mark.parametrize(
    "message",
    [
        None,
        [],
        {},
        batch(schema="governor.signals/2"),
        batch(seq="1"),
        batch(seq=True),
        batch(worker_epoch=3),
        batch(rows=None),
    ],
)
def test_another_schema_or_a_broken_envelope_is_refused(message: Any) -> None:
    with pytest.raises(UpstreamProtocolError):
        decode_batch(message)


@pytest.mark.parametrize(
    "change",
    [{"schema": "x"}, {"rid": 1}, {"attempt": None}, {"fence": True}, {"op": "fly"}, {"arg": 3}],
)
def test_a_broken_instruction_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UpstreamProtocolError):
        decode_control({**golden("control.json")[0], **change})


def test_a_status_that_is_not_known_is_spelt_out() -> None:
    ack = decode_ack({**golden("control_ack.json")[0], "status": "later", "position": "x"})
    assert ack.status is ControlStatus.UNKNOWN
    assert ack.detail is not None
    assert "later" in ack.detail
    assert ack.position is None
    with pytest.raises(UpstreamProtocolError):
        decode_ack({**golden("control_ack.json")[0], "status": None})


def test_rows_of_an_earlier_attempt_are_dropped_from_the_start() -> None:
    join = SignalJoin(attempt=1)
    assert join.accept(row(4, 4, attempt=0)) is None
    assert join.accept(row(2, 2, attempt=1)) == row(2, 2, attempt=1)
    assert join.accept(row(6, 2, attempt=0)) is None
    assert (join.repeats, join.gaps) == (2, 0)


def test_a_later_attempt_starts_again_at_its_first_token() -> None:
    join = SignalJoin()
    assert join.accept(row(4, 4)) is not None
    assert join.accept(row(2, 2, attempt=1)) == row(2, 2, attempt=1)


def test_a_jump_in_positions_is_a_gap_and_its_tokens_stay_missing() -> None:
    join = SignalJoin()
    join.accept(row(2, 2))
    assert join.accept(row(10, 3)) == row(10, 3)
    assert (join.gaps, join.missing_tokens) == (1, 5)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=30))
def test_the_join_gives_every_token_at_most_once_and_in_order(
    rows: list[tuple[int, int]],
) -> None:
    join = SignalJoin()
    taken: list[int] = []
    for position, tokens in rows:
        tokens = min(position, tokens)
        before = join.position
        kept = join.accept(row(position, tokens))
        if kept is None:
            assert position <= before
            assert join.position == before
        else:
            taken += kept.tokens
            assert join.position == position > before
    assert taken == sorted(set(taken))
    assert len(taken) + join.missing_tokens == join.position


@given(st.integers(1, 24), st.data())
def test_recomputation_changes_nothing_for_the_reader(length: int, data: st.DataObject) -> None:
    """Whatever is sent again, in whatever pieces: the reader has the sequence once."""
    join = SignalJoin()
    taken: list[int] = []
    position = 0
    while position < length:
        start = data.draw(st.integers(max(0, position - 9), position))
        end = data.draw(st.integers(start + 1, min(length, start + 9)))
        kept = join.accept(row(end, end - start))
        taken += kept.tokens if kept is not None else ()
        position = max(position, end)
    assert taken == list(range(length))
    assert (join.gaps, join.missing_tokens) == (0, 0)
