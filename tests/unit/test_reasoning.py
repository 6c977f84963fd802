"""The split into reasoning and answer, whatever the tags and however the text is cut."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.errors import PolicyInvalid
from governor.core.reasoning import PieceKind, ReasoningSplitter

THINK = ("<think>", "</think>")
R, A = PieceKind.REASONING, PieceKind.ANSWER
Split = tuple[list[tuple[PieceKind, str]], int]

CASES: dict[str, tuple[bool, str, list[tuple[PieceKind, str]], int]] = {
    "opened by the template": (True, "why\n</think>\n\n42", [(R, "why\n"), (A, "\n\n42")], 0),
    "opened by the model": (False, "<think>why</think>42", [(R, "why"), (A, "42")], 0),
    "opened by both": (True, "\n<think>\nwhy</think>42", [(R, "\n\nwhy"), (A, "42")], 0),
    "never opened": (False, "42 < 43", [(A, "42 < 43")], 0),
    "never closed": (True, "why </thin", [(R, "why </thin")], 0),
    "empty": (True, "</think>42", [(A, "42")], 0),
    "doubled end": (True, "why</think></think>42", [(R, "why"), (A, "42")], 0),
    "doubled end on its own line": (True, "why</think>\n</think>42", [(R, "why"), (A, "\n42")], 0),
    "end tag in the answer is text": (
        True,
        "why</think>write </think>",
        [(R, "why"), (A, "write </think>")],
        0,
    ),
    "start tag in the thought is text": (
        True,
        "a <think> b</think>c",
        [(R, "a <think> b"), (A, "c")],
        0,
    ),
    "opened again": (
        True,
        "a</think>b<think>c</think>d",
        [(R, "a"), (A, "b"), (R, "c"), (A, "d")],
        1,
    ),
    "opened again at once": (True, "a</think><think>c</think>d", [(R, "ac"), (A, "d")], 1),
    "opened again twice": (
        False,
        "<think>a</think>b<think>c</think>d<think>e",
        [(R, "a"), (A, "b"), (R, "c"), (A, "d"), (R, "e")],
        2,
    ),
    "answer first": (False, "hm<think>a</think>b", [(A, "hm"), (R, "a"), (A, "b")], 0),
    "nearly a tag": (True, "</thin</think>a<th<thin>", [(R, "</thin"), (A, "a<th<thin>")], 0),
    "beyond ascii": (True, "žluť 🐎</think>≤ 🐎", [(R, "žluť 🐎"), (A, "≤ 🐎")], 0),
}


def split(parts: list[str], starts_open: bool, tags: tuple[str, str] = THINK) -> Split:
    splitter = ReasoningSplitter(*tags, starts_open)
    pieces = [piece for part in parts for piece in splitter.feed(part)] + splitter.finish()
    assert all(piece.text for piece in pieces)
    out: list[tuple[PieceKind, str]] = []
    for piece in pieces:
        if out and out[-1][0] is piece.kind:
            out[-1] = (piece.kind, out[-1][1] + piece.text)
        else:
            out.append((piece.kind, piece.text))
    return out, splitter.reopened


@pytest.mark.parametrize("name", CASES)
def test_splits_the_same_whole_by_character_and_at_every_position(name: str) -> None:
    starts_open, text, pieces, reopened = CASES[name]
    assert split([text], starts_open) == (pieces, reopened)
    assert split(list(text), starts_open) == (pieces, reopened)
    for cut in range(len(text) + 1):
        assert split([text[:cut], text[cut:]], starts_open) == (pieces, reopened)


@pytest.mark.parametrize(
    "tags",
    [("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<|a|>", "<|b|>"), ("aab", "aac")],
)
@given(data=st.data())
def test_no_text_is_lost_or_made_and_cuts_do_not_matter(
    tags: tuple[str, str], data: st.DataObject
) -> None:
    bits = [*tags, tags[0][:-1], tags[1][1:], tags[1][:2], " ", "\n", "x", "é", "a"]
    text = "".join(data.draw(st.lists(st.sampled_from(bits), max_size=12)))
    starts_open = data.draw(st.booleans())
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=6))
    whole = split([text], starts_open, tags)
    edges = [0, *sorted(cuts), len(text)]
    assert split([text[a:b] for a, b in pairwise(edges)], starts_open, tags) == whole
    assert split(list(text), starts_open, tags) == whole
    between = "(?:" + "|".join(map(re.escape, tags)) + ")*"
    given_out = [re.escape(character) for _, piece in whole[0] for character in piece]
    assert re.fullmatch(between.join(["", *given_out, ""]), text)


def test_text_is_given_as_soon_as_it_can_be_no_tag() -> None:
    splitter = ReasoningSplitter("<think>", "</think>", True)
    assert [piece.text for piece in splitter.feed("why </th")] == ["why "]
    assert splitter.held == "</th"
    assert [piece.text for piece in splitter.feed("at")] == ["</that"]
    assert splitter.held == ""
    assert splitter.feed("</think") == []
    assert [(p.kind, p.text) for p in splitter.feed(">4")] == [(A, "4")]
    assert splitter.kind is A


@pytest.mark.parametrize("tags", [("", "b"), ("a", ""), ("a", "a"), ("a", "ab"), ("ab", "a")])
def test_unusable_tags_are_refused(tags: tuple[str, str]) -> None:
    with pytest.raises(PolicyInvalid):
        ReasoningSplitter(*tags, starts_open=True)
