"""TokenMeter: how many reasoning and answer tokens a stream carried. A chunk is not a token."""

from collections.abc import Sequence
from enum import StrEnum


class CountSource(StrEnum):
    """Where the running counts come from, best first."""

    TOKEN_IDS = "token_ids"
    USAGE = "usage"
    SIGNALS = "signals"
    EVENTS = "events"


class TokenMeter:
    """Attributes output tokens to reasoning or answer as they arrive.

    Reasoning tokens are all output tokens up to and including the end-of-thinking token; a wrap-up
    text therefore counts as reasoning. Sources are tried per chunk: the chunk's own token ids, the
    continuous usage, the worker's signal rows, else one token for each event, which is an estimate
    until the final usage replaces it (`exact` says which).
    """

    __slots__ = (
        "_signals_alive",
        "_think_end",
        "_thinking_open",
        "exact",
        "position",
        "source",
    )

    def __init__(self, think_end_ids: Sequence[int], *, signals_alive: bool) -> None:
        self._think_end = frozenset(think_end_ids)
        self._signals_alive = signals_alive
        self._thinking_open = True
        self.position = 0
        self.source = CountSource.SIGNALS if signals_alive else CountSource.EVENTS
        self.exact = signals_alive

    def signals_lost(self) -> None:
        """The worker's feed went away: count from the stream from here on."""
        self._signals_alive = False
        if self.source is CountSource.SIGNALS:
            self.source = CountSource.EVENTS
            self.exact = False

    def chunk(
        self,
        *,
        token_ids: Sequence[int] | None,
        completion_tokens: int | None,
        carries_text: bool,
        answering: bool,
    ) -> tuple[int, int]:
        """(reasoning, answer) tokens that a chunk adds; `answering`: it carries answer text."""
        if token_ids:
            self.source, self.exact = CountSource.TOKEN_IDS, True
            self.position += len(token_ids)
            return self._split(len(token_ids), token_ids, answering=answering)
        if self.source is CountSource.TOKEN_IDS:
            return (0, 0)
        if completion_tokens is not None:
            added = max(0, completion_tokens - self.position)
            self.source, self.exact = CountSource.USAGE, True
            self.position += added
            return (0, added) if answering else (added, 0)
        if self._signals_alive or not carries_text:
            return (0, 0)
        self.source, self.exact = CountSource.EVENTS, False
        self.position += 1
        return (0, 1) if answering else (1, 0)

    def row(self, position: int, tokens: Sequence[int], *, answering: bool) -> tuple[int, int]:
        """(reasoning, answer) tokens that a signal row adds.

        A row that straddles the end of thinking is split at the end-of-thinking token.
        """
        new = position - self.position
        if not self._signals_alive or self.source is not CountSource.SIGNALS or new <= 0:
            return (0, 0)
        self.position = position
        return self._split(new, tokens, answering=answering)

    def _split(self, new: int, tokens: Sequence[int], *, answering: bool) -> tuple[int, int]:
        """Split the last `new` tokens at the end-of-thinking token, once."""
        if not answering:
            return (new, 0)
        if not self._thinking_open:
            return (0, new)
        self._thinking_open = False
        fresh = list(tokens)[-new:] if tokens else []
        ends = [i for i, token in enumerate(fresh) if token in self._think_end]
        reasoning = ends[-1] + 1 if ends else 0
        return (reasoning, new - reasoning)
