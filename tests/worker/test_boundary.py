"""Boundaries of thinking: ends of lines and sentences, never inside a code fence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor_probes.boundary import BoundaryTracker


def feed(*pieces: str) -> BoundaryTracker:
    tracker = BoundaryTracker()
    for piece in pieces:
        tracker.feed(piece)
    return tracker


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", False),
        ("so 19\n", True),
        ("so 19", False),
        ("That is it.", True),
        ("That is it. ", True),
        ("Is it?", True),
        ("he said “no.”", True),
        ("pi is 3.", False),
        ("它是对的。", True),
        ("(see below.)", True),
        ("...", False),
        ("```py\nx = 1\n", False),
        ("```py\nx = 1\n```\n", True),
        ("```", False),
    ],
)
def test_where_thinking_may_end(text: str, expected: bool) -> None:
    assert feed(text).at_boundary is expected
    assert feed(*text).at_boundary is expected


def test_a_line_start_is_behind_a_newline_or_blank_space_on_it() -> None:
    assert BoundaryTracker().at_line_start
    assert not feed("a").at_line_start
    assert feed("a\n").at_line_start
    assert feed("a\n", "  ").at_line_start
    assert not BoundaryTracker(at_line_start=False).at_line_start


@given(st.text(alphabet="ab.`\n 1)", max_size=60), st.data())
def test_the_cut_into_pieces_does_not_matter(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole, split = feed(text), feed(*pieces)
    assert (whole.at_boundary, whole.in_fence, whole.at_line_start) == (
        split.at_boundary,
        split.in_fence,
        split.at_line_start,
    )
