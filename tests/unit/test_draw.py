"""Draws are reproducible, evenly spread, and independent between purposes."""

from hypothesis import given
from hypothesis import strategies as st

from governor.core.draw import draw_for


def test_a_draw_is_the_same_on_every_machine() -> None:
    assert draw_for(1, "0b7c6f0e5a1d4c0f") == 0.7372171406686832


@given(st.integers(), st.text(), st.text())
def test_a_draw_is_within_zero_and_one(seed: int, decision_id: str, purpose: str) -> None:
    drawn = draw_for(seed, decision_id, purpose)
    assert 0.0 <= drawn < 1.0
    assert drawn == draw_for(seed, decision_id, purpose)


def test_draws_are_even_and_purposes_independent() -> None:
    pairs = [(draw_for(7, str(i), "mode"), draw_for(7, str(i), "place")) for i in range(4000)]
    low = sum(one < 0.25 for one, _ in pairs) / len(pairs)
    both = sum(one < 0.25 and other < 0.25 for one, other in pairs) / len(pairs)
    assert abs(low - 0.25) < 0.03
    assert abs(both - 0.0625) < 0.02
    assert draw_for(7, "a") != draw_for(8, "a")
