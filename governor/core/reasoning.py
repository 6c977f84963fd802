"""Splits the raw text of a model into reasoning and answer, for workers without a reasoning parser.
Incremental: tags may lie across chunks. Knows nothing of budgets.
"""

from dataclasses import dataclass
from enum import StrEnum

from governor.core.errors import PolicyInvalid


class PieceKind(StrEnum):
    """Which side of the end-of-thinking tag a text belongs to."""

    REASONING = "reasoning"
    ANSWER = "answer"


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text without tags, never empty."""

    kind: PieceKind
    text: str


class ReasoningSplitter:
    """`starts_open` says that the chat template has already opened the thinking block.

    Tags are taken out. A start tag repeated at the beginning of an open block and an end tag
    repeated before the answer's first word are swallowed; elsewhere such a tag is text. A start tag
    in the answer opens the block again: what follows is reasoning, and `reopened` counts it when
    thinking had ended before. How the text is cut into calls makes no difference to the whole.
    """

    __slots__ = ("_blank", "_end_tag", "_ended_before", "_held", "_start_tag", "kind", "reopened")

    def __init__(self, start_tag: str, end_tag: str, starts_open: bool) -> None:
        if not start_tag or not end_tag:
            raise PolicyInvalid("a thinking tag is empty")
        if start_tag.startswith(end_tag) or end_tag.startswith(start_tag):
            raise PolicyInvalid(f"one tag begins with the other: {start_tag!r}, {end_tag!r}")
        self._start_tag = start_tag
        self._end_tag = end_tag
        self.kind = PieceKind.REASONING if starts_open else PieceKind.ANSWER
        self.reopened = 0
        self._held = ""
        self._blank = True  # nothing but white space since the last tag
        self._ended_before = False

    @property
    def held(self) -> str:
        """The beginning of what may become a tag; not given out yet."""
        return self._held

    def feed(self, text: str) -> list[Piece]:
        """Split the next text; adjacent pieces may be of one kind."""
        rest = self._held + text
        pieces: list[Piece] = []
        while rest:
            turning, repeated = self._tags()
            at = rest.find(turning)
            if self._blank:
                words = rest.lstrip()
                margin = len(rest) - len(words)
                if words.startswith(repeated) and (at < 0 or margin < at):
                    self._emit(rest[:margin], pieces)
                    rest = words[len(repeated) :]
                    continue
            if at < 0:
                break
            self._emit(rest[:at], pieces)
            rest = rest[at + len(turning) :]
            self._turn()
        kept = self._may_be_tag(rest)
        self._emit(rest[: len(rest) - kept], pieces)
        self._held = rest[len(rest) - kept :]
        return pieces

    def finish(self) -> list[Piece]:
        """The text has ended: what was held back was no tag."""
        pieces: list[Piece] = []
        self._emit(self._held, pieces)
        self._held = ""
        return pieces

    def _tags(self) -> tuple[str, str]:
        """The tag that ends the present kind, and the one that would only repeat it."""
        if self.kind is PieceKind.REASONING:
            return self._end_tag, self._start_tag
        return self._start_tag, self._end_tag

    def _turn(self) -> None:
        if self.kind is PieceKind.REASONING:
            self.kind = PieceKind.ANSWER
            self._ended_before = True
        else:
            self.kind = PieceKind.REASONING
            self.reopened += self._ended_before
        self._blank = True

    def _emit(self, text: str, pieces: list[Piece]) -> None:
        if text:
            pieces.append(Piece(self.kind, text))
            self._blank = self._blank and text.isspace()

    def _may_be_tag(self, rest: str) -> int:
        """Length of the longest end of `rest` that may be the beginning of a tag."""
        turning, repeated = self._tags()
        kept = _overlap(rest, turning)
        if self._blank:
            words = rest.lstrip()
            if words and repeated.startswith(words):
                kept = max(kept, len(words))
        return kept


def _overlap(text: str, tag: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `tag`."""
    for length in range(min(len(text), len(tag) - 1), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0
