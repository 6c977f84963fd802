"""Finds stop strings in a growing text and holds back what may still become one."""


class StopText:
    """Text of one request on its way out. Without stop strings it passes everything through."""

    __slots__ = ("_held", "_include", "_longest", "_stops", "matched")

    def __init__(self, stops: tuple[str, ...], include: bool = False) -> None:
        self._stops = stops
        self._include = include
        self._longest = max((len(s) for s in stops), default=0)
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """Takes new text and returns what may go out. After a match, `matched` names the stop."""
        if not self._stops:
            return text
        whole = self._held + text
        hits = [(whole.find(s), s) for s in self._stops if s in whole]
        if hits:
            at, self.matched = min(hits, key=lambda hit: (hit[0], -len(hit[1])))
            self._held = ""
            return whole[: at + (len(self.matched) if self._include else 0)]
        keep = self._possible_start(whole)
        self._held = whole[len(whole) - keep :]
        return whole[: len(whole) - keep]

    def flush(self) -> str:
        """Releases what was held back: the text ends, or goes on in another channel."""
        held, self._held = self._held, ""
        return held

    def _possible_start(self, whole: str) -> int:
        for n in range(min(self._longest - 1, len(whole)), 0, -1):
            if any(s.startswith(whole[-n:]) for s in self._stops):
                return n
        return 0
