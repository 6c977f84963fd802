"""Tells where thinking may end: after a line or a sentence, never inside a code fence."""

_SENTENCE_ENDS = ".!?…"
_CJK_ENDS = "。！？"
_CLOSERS = "\"')]}»”’*_"
_FENCE = "```"


class BoundaryTracker:
    """Follows the text of one thinking block piece by piece.

    A boundary is the end of a line, or a sentence mark behind a letter or a closing bracket or
    quote ("3." may go on as "3.14", so a digit before the mark does not count). Inside a code
    fence nothing is a boundary.
    """

    __slots__ = ("_at_boundary", "_at_line_start", "_in_fence", "_line", "_tail")

    def __init__(self, at_line_start: bool = True) -> None:
        self._at_line_start = at_line_start
        self._in_fence = False
        self._at_boundary = False
        self._line = ""
        self._tail = ""

    @property
    def at_line_start(self) -> bool:
        """True when nothing stands on the current line."""
        return self._at_line_start

    @property
    def in_fence(self) -> bool:
        """True inside a ``` code fence."""
        return self._in_fence

    @property
    def at_boundary(self) -> bool:
        """True when thinking may end right here. False before any text."""
        return self._at_boundary

    def feed(self, text: str) -> None:
        """Takes the text of the next token; an empty text changes nothing."""
        if not text:
            return
        *done, last = text.split("\n")
        for part in done:
            self._end_line(part)
        self._line = (self._line + last)[-256:] if not done else last[:256]
        self._at_line_start = text.endswith("\n") or (self._at_line_start and not text.strip(" \t"))
        self._tail = (self._tail + text)[-8:]
        self._at_boundary = not self._in_fence and self._ends_here()

    def _end_line(self, part: str) -> None:
        line = (self._line + part).lstrip()
        self._line = ""
        if line.startswith(_FENCE):
            self._in_fence = not self._in_fence

    def _ends_here(self) -> bool:
        if self._line.lstrip().startswith(_FENCE):
            return False
        if self._tail.endswith("\n"):
            return True
        tail = self._tail.rstrip(" ").rstrip(_CLOSERS)
        if not tail:
            return False
        if tail[-1] in _CJK_ENDS:
            return True
        before = tail.rstrip(_SENTENCE_ENDS)
        return (
            tail[-1] in _SENTENCE_ENDS
            and bool(before)
            and (before[-1].isalpha() or before[-1] in _CLOSERS)
        )
