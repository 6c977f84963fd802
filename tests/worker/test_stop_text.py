"""Stop strings in a growing text."""

from hypothesis import given
from hypothesis import strategies as st

from governor_probes.embedded.stop_text import StopText


def play(
    pieces: list[str], stops: tuple[str, ...], include: bool = False
) -> tuple[str, str | None]:
    stop = StopText(stops, include)
    out = ""
    for piece in pieces:
        out += stop.feed(piece)
        if stop.matched is not None:
            return out, stop.matched
    return out + stop.flush(), None


@given(
    st.text(alphabet="abc", max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
)
def test_pieces_give_the_text_up_to_the_first_stop(text: str, stops: list[str]) -> None:
    out, matched = play(list(text), tuple(stops))
    ends = {s: text.find(s) + len(s) for s in stops if s in text}
    if not ends:
        assert (out, matched) == (text, None)
        return
    # Character by character the stop that is complete first wins.
    assert matched is not None
    assert ends[matched] == min(ends.values())
    assert out == text[: text.find(matched)]


def test_the_stop_can_be_included() -> None:
    assert play(["ab", "cd"], ("bc",), include=True) == ("abc", "bc")
    assert play(["ab", "cd"], ("bc",)) == ("a", "bc")
