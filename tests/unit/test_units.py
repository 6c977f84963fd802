"""Blocks round up, KV area is an exact integer, seconds and microseconds agree."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.units import blocks_for, kv_area, s_from_us, us_from_s

tokens = st.integers(0, 1_000_000)


@given(tokens, st.integers(1, 1024))
def test_blocks_hold_the_tokens_and_no_block_is_empty(count: int, block_size: int) -> None:
    blocks = blocks_for(count, block_size)
    assert blocks * block_size >= count
    assert (blocks - 1) * block_size < count or blocks == 0


@given(st.integers(0, 10_000), st.integers(0, 300))
def test_area_is_the_sum_over_output_tokens(prompt: int, output: int) -> None:
    assert kv_area(prompt, output) == sum(prompt + t for t in range(1, output + 1))


@given(tokens, tokens, tokens)
def test_area_of_a_continued_request_adds_up(prompt: int, first: int, second: int) -> None:
    whole = kv_area(prompt, first + second)
    assert whole == kv_area(prompt, first) + kv_area(prompt + first, second)


@pytest.mark.parametrize("call", [lambda: blocks_for(-1, 16), lambda: blocks_for(1, 0)])
def test_blocks_refuse_nonsense(call: object) -> None:
    with pytest.raises(ValueError, match="block_size"):
        call()  # type: ignore[operator]


def test_area_refuses_negative_counts() -> None:
    with pytest.raises(ValueError, match="token counts"):
        kv_area(5, -1)


@given(st.integers(0, 10**12))
def test_microseconds_survive_the_trip_through_seconds(microseconds: int) -> None:
    assert us_from_s(s_from_us(microseconds)) == microseconds
