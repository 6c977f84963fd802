"""Survival functions: what is exact, what is monotone, and what a request will hold."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.forecast import FORECAST_SCHEMA, GRID_TOKENS, Forecast, Survival, held


@st.composite
def survivals(draw: st.DrawFn) -> Survival:
    values = draw(st.lists(st.floats(0, 1), min_size=32, max_size=32))
    limit = draw(st.none() | st.integers(0, 200_000))
    return Survival(tuple(sorted(values, reverse=True)), limit)


def forecast_of(natural: Survival, answer: Survival, loops: float = 0.0) -> Forecast:
    return Forecast(FORECAST_SCHEMA, "test", natural, answer, loops, fallback=False)


def exactly(tokens: int) -> Survival:
    """A length that is `tokens` for sure."""
    return Survival((1.0,) * len(GRID_TOKENS), tokens)


def test_the_grid_is_geometric_from_16_to_131072() -> None:
    assert len(GRID_TOKENS) == 32
    assert tuple(round(16 * 8192 ** (i / 31)) for i in range(32)) == GRID_TOKENS


@pytest.mark.parametrize(
    "values",
    [
        (1.0,) * 31,
        (0.5,) * 31 + (0.6,),
        (1.1,) + (0.5,) * 31,
        (0.5,) * 31 + (-0.1,),
        (math.nan,) * 32,
    ],
)
def test_values_that_are_no_survival_are_refused(values: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="survival values"):
        Survival(values)


@given(survivals(), st.integers(-5, 200_000), st.integers(0, 5_000))
def test_survival_never_rises_and_keeps_its_limit(s: Survival, tokens: int, more: int) -> None:
    assert 0.0 <= s.at(tokens + more) <= s.at(tokens) <= 1.0
    if s.limit_tokens is not None:
        assert s.at(max(0, s.limit_tokens)) == 0.0
        assert s.at(s.limit_tokens - 1) == s.truncated(s.limit_tokens + 7).at(s.limit_tokens - 1)


@given(survivals())
def test_survival_passes_through_its_values(s: Survival) -> None:
    for point, value in zip(GRID_TOKENS, s.values, strict=True):
        assert s.at(point) == (
            0.0 if s.limit_tokens is not None and point >= s.limit_tokens else value
        )


@given(survivals(), st.floats(0, 1))
def test_a_quantile_is_the_least_count_that_reaches_it(s: Survival, q: float) -> None:
    found = s.quantile(q)
    end = GRID_TOKENS[-1] if s.limit_tokens is None else s.limit_tokens
    assert 0 <= found <= max(end, GRID_TOKENS[-1])
    if found < end:
        assert s.at(found) <= 1.0 - q + 1e-9
    if found > 0:
        assert s.at(found - 1) >= 1.0 - q - 1e-9


@given(survivals(), st.floats(0, 1), st.floats(0, 1))
def test_quantiles_are_ordered(s: Survival, one: float, other: float) -> None:
    assert s.quantile(min(one, other)) <= s.quantile(max(one, other))


@given(survivals(), st.integers(0, 3_000), st.integers(0, 500))
def test_mean_and_area_are_the_exact_sums(s: Survival, limit: int, prompt: int) -> None:
    expected = math.fsum(s.at(t) for t in range(limit))
    assert s.mean(limit) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    area = math.fsum(s.at(t) * (prompt + t + 1) for t in range(limit))
    assert s.mean_area(prompt, limit) == pytest.approx(area, rel=1e-9, abs=1e-9)


@given(survivals(), st.integers(0, 150_000), st.integers(0, 50_000))
def test_what_remains_is_the_exact_conditional(s: Survival, elapsed: int, more: int) -> None:
    remaining = s.given(elapsed)
    if s.at(elapsed) > 0.0:
        assert remaining(more) == s.at(elapsed + more) / s.at(elapsed)
        assert remaining(0) == 1.0
    else:
        assert remaining(more) == 0.0
    assert remaining(-1) == 1.0


@given(survivals(), st.integers(0, 5_000), st.integers(0, 5_000))
def test_truncation_keeps_the_lower_limit(s: Survival, one: int, other: int) -> None:
    both = s.truncated(one).truncated(other)
    assert both == s.truncated(min(one, other))
    assert s.truncated(None) == s
    assert s.truncated(one).mean() <= s.mean() + 1e-9


@given(survivals(), survivals(), st.floats(0, 1), st.integers(0, 9_000), st.integers(0, 9_000))
def test_held_respects_both_caps(
    natural: Survival, answer: Survival, loops: float, cap: int, answer_cap: int
) -> None:
    total = held(forecast_of(natural, answer, loops), cap, answer_cap)
    assert total.at(cap + answer_cap) == 0.0
    for before, after in pairwise(total.values):
        assert 0.0 <= after <= before <= 1.0


@given(survivals(), survivals(), st.floats(0, 1), st.integers(0, 9_000), st.integers(0, 9_000))
def test_held_grows_with_the_thinking_cap(
    natural: Survival, answer: Survival, loops: float, cap: int, more: int
) -> None:
    forecast = forecast_of(natural, answer, loops)
    smaller, larger = held(forecast, cap, 512), held(forecast, cap + more, 512)
    unlimited = held(forecast, None, 512)
    for point in GRID_TOKENS:
        assert smaller.at(point) <= larger.at(point) + 1e-12 <= unlimited.at(point) + 2e-12


def test_held_adds_thinking_and_answer() -> None:
    total = held(forecast_of(exactly(936), exactly(219)), None, None)
    # Known lengths add up; between grid points the curve is a straight line.
    assert total.at(936) == 1.0
    assert total.at(1252) == 0.0
    assert total.quantile(0.5) == pytest.approx(936 + 219, rel=0.1)


def test_held_thinking_ends_at_the_cap() -> None:
    forecast = forecast_of(exactly(9580), exactly(219))
    capped = held(forecast, 1252, 219)
    assert capped.limit_tokens == 1252 + 219
    assert capped.mean() == pytest.approx(1252 + 219)


def test_a_loop_holds_memory_until_the_cap() -> None:
    short, answer = exactly(68), exactly(21)
    without = held(forecast_of(short, answer, loops=0.0), 2048, 64)
    looping = held(forecast_of(short, answer, loops=0.25), 2048, 64)
    assert without.at(1000) == 0.0
    assert looping.at(1000) == pytest.approx(0.25)
    assert held(forecast_of(short, answer, loops=0.25), None, 64).at(131_071) == pytest.approx(0.25)


def test_thinking_off_holds_the_answer_only() -> None:
    answer = Survival(tuple(math.exp(-point / 200) for point in GRID_TOKENS))
    total = held(forecast_of(exactly(9580), answer, loops=0.5), 0, None)
    assert total.mean() == pytest.approx(answer.mean(), rel=0.12)
