"""A chunk is not a token: counting from ids, usage, signal rows and, last, events."""

import pytest

from governor.core.meter import CountSource, TokenMeter

END = 9


def chunk(
    meter: TokenMeter,
    ids: list[int] | None = None,
    usage: int | None = None,
    *,
    answering: bool = False,
) -> tuple[int, int]:
    return meter.chunk(
        token_ids=ids, completion_tokens=usage, carries_text=True, answering=answering
    )


def test_token_ids_of_a_packed_chunk_are_all_counted() -> None:
    meter = TokenMeter([END], signals_alive=False)
    assert chunk(meter, [1, 2, 3]) == (3, 0)
    assert meter.exact
    assert meter.source is CountSource.TOKEN_IDS


def test_a_chunk_that_straddles_the_end_of_thinking_is_split_at_its_token() -> None:
    meter = TokenMeter([END], signals_alive=False)
    assert chunk(meter, [1, 2]) == (2, 0)
    assert chunk(meter, [3, END, 4, 5], answering=True) == (2, 2)
    assert chunk(meter, [END, 6], answering=True) == (0, 2)


def test_continuous_usage_counts_differences() -> None:
    meter = TokenMeter([END], signals_alive=False)
    assert chunk(meter, None, 4) == (4, 0)
    assert chunk(meter, None, 4) == (0, 0)
    assert chunk(meter, None, 9, answering=True) == (0, 5)
    assert meter.exact


def test_without_any_source_an_event_is_one_token_and_said_to_be_an_estimate() -> None:
    meter = TokenMeter([END], signals_alive=False)
    assert chunk(meter) == (1, 0)
    assert chunk(meter, answering=True) == (0, 1)
    assert not meter.exact


def test_rows_count_while_the_feed_is_alive_and_chunks_do_not() -> None:
    meter = TokenMeter([END], signals_alive=True)
    assert chunk(meter) == (0, 0)
    assert meter.row(8, range(8), answering=False) == (8, 0)
    assert meter.row(12, [1, END, 3, 4], answering=True) == (2, 2)
    assert meter.row(12, [1, END, 3, 4], answering=True) == (0, 0)
    assert meter.exact


def test_losing_the_feed_falls_back_to_events_and_says_so() -> None:
    meter = TokenMeter([END], signals_alive=True)
    meter.row(8, range(8), answering=False)
    meter.signals_lost()
    assert chunk(meter) == (1, 0)
    assert meter.source is CountSource.EVENTS
    assert not meter.exact
    assert meter.row(20, [], answering=False) == (0, 0)


@pytest.mark.parametrize("size", [1, 3, 20])
def test_ids_are_counted_exactly_for_any_number_of_tokens_per_chunk(size: int) -> None:
    meter = TokenMeter([END], signals_alive=False)
    tokens = [1] * 57 + [END] + [2] * 23
    total = [0, 0]
    for start in range(0, len(tokens), size):
        part = tokens[start : start + size]
        answering = END in tokens[: start + size]
        reasoning, answer = chunk(meter, part, answering=answering)
        total[0] += reasoning
        total[1] += answer
    assert total == [58, 23]
