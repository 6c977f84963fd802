"""Decides, token by token, which token to force so that one request's thinking ends.

Free of any framework: an engine adapter asks `forced_token` before each step and reports each
output token to `observe`. It does not sample, decode text or know about requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from governor_probes.boundary import BoundaryTracker


class Phase(StrEnum):
    """Where a request stands. FORCING is the wrap-up being written, tail included."""

    THINKING = "thinking"
    FORCING = "forcing"
    ANSWERING = "answering"


class Channel(StrEnum):
    """What an output token belongs to. TAG tokens delimit thinking and are nobody's text."""

    REASONING = "reasoning"
    TAG = "tag"
    ANSWER = "answer"


class LandedBy(StrEnum):
    """What ended thinking before the model did."""

    BUDGET = "budget"
    CONTROL = "control"


class LandStatus(StrEnum):
    """Answers to `land` and `set_budget`; the values are those of the control contract."""

    APPLIED = "applied"
    ALREADY_LANDING = "already_landing"
    THINKING_OVER = "thinking_over"


@dataclass(frozen=True, slots=True)
class ThinkTags:
    """Token ids of the tags around thinking, as the model's tokenizer writes them."""

    start_ids: tuple[int, ...]
    end_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.start_ids or not self.end_ids:
            raise ValueError("think tags need at least one token each")


@dataclass(frozen=True, slots=True)
class WrapUp:
    """What is written to end thinking; both forms hold the end tag.

    `ids_at_line_start` is used where a line has just ended: the text without its leading newlines,
    so that no blank line appears that the model never saw in training.
    """

    ids: tuple[int, ...]
    ids_at_line_start: tuple[int, ...]
    tail_ids: tuple[int, ...]

    @classmethod
    def around(
        cls, ids: Sequence[int], ids_at_line_start: Sequence[int], end_ids: Sequence[int]
    ) -> "WrapUp":
        """Builds a wrap-up; a text without the end tag gets it appended."""
        full, short = _with_tag(ids, end_ids), _with_tag(ids_at_line_start, end_ids)
        return cls(ids=full, ids_at_line_start=short, tail_ids=full[_after_tag(full, end_ids) :])


@dataclass(frozen=True, slots=True)
class _Window:
    """Thinking ends at a boundary from `earliest` thinking tokens on, at `latest` anyhow."""

    earliest: int
    latest: int


class LandingState:
    """One request's thinking, its budget and its landing.

    Counting: a thinking token is an output token inside the thinking block that is not part of a
    tag; wrap-up tokens before the end tag are thinking tokens too. A budget of N lets the model
    write at most N thinking tokens; the wrap-up follows them. Tokens already in the prompt do not
    count.

    Args:
        tags: the model's think tags; None for a model that does not think.
        wrap_up: what ends thinking; None only together with `tags=None`.
        thinking_open: whether the prompt has opened a thinking block.
        at_line_start: whether the prompt ends with a newline.
    """

    __slots__ = (
        "_budget",
        "_closed",
        "_inside",
        "_landed",
        "_landed_by",
        "_landing",
        "_pending",
        "_queue",
        "_tags",
        "_text",
        "_wrap_up",
        "thinking_tokens",
    )

    def __init__(
        self,
        tags: ThinkTags | None,
        wrap_up: WrapUp | None,
        *,
        thinking_open: bool,
        at_line_start: bool = True,
    ) -> None:
        if tags is not None and wrap_up is None:
            raise ValueError("a model with think tags needs a wrap-up")
        self._tags = tags
        self._wrap_up = wrap_up
        self._inside = thinking_open and tags is not None
        self._text = BoundaryTracker(at_line_start)
        self._pending: list[tuple[int, str]] = []
        self._queue: tuple[int, ...] = ()
        self._budget: _Window | None = None
        self._landing: _Window | None = None
        self._landed = False
        self._landed_by: LandedBy | None = None
        self._closed = False
        self.thinking_tokens = 0

    @property
    def phase(self) -> Phase:
        """The present phase."""
        if self._queue:
            return Phase.FORCING
        return Phase.THINKING if self._inside else Phase.ANSWERING

    @property
    def inside(self) -> bool:
        """True while the thinking block is open, a forced wrap-up before its end tag included."""
        return self._inside

    @property
    def landed(self) -> bool:
        """True once a wrap-up has been started by a budget or a landing."""
        return self._landed

    @property
    def landed_by(self) -> LandedBy | None:
        """What started the wrap-up; None while nothing has."""
        return self._landed_by

    @property
    def forced_token(self) -> int | None:
        """The token that the next step must emit, or None for the model's own choice."""
        return self._queue[0] if self._queue else None

    def set_budget(self, tokens: int | None, grace_tokens: int = 0) -> LandStatus:
        """Sets or changes the absolute budget; None removes it. It may shrink or grow.

        Thinking ends at the first boundary with more than `tokens - grace_tokens` thinking tokens,
        and at `tokens` in any case.
        """
        if tokens is None:
            self._budget = None
        else:
            if tokens < 0 or grace_tokens < 0:
                raise ValueError("tokens and grace_tokens must not be negative")
            self._budget = _Window(earliest=max(1, tokens - grace_tokens + 1), latest=tokens)
        if self._queue:
            return LandStatus.ALREADY_LANDING
        self._decide()
        return LandStatus.APPLIED if self._inside else LandStatus.THINKING_OVER

    def land(self, grace_tokens: int, wrap_up: WrapUp | None = None) -> LandStatus:
        """Ends thinking at the first boundary within `grace_tokens`, else at their end.

        A second landing does not move the first.
        """
        if grace_tokens < 0:
            raise ValueError("grace_tokens must not be negative")
        if self._queue and self._inside:
            return LandStatus.ALREADY_LANDING
        if not self._inside:
            return LandStatus.THINKING_OVER
        if self._landing is not None:
            return LandStatus.ALREADY_LANDING
        count = self._count()
        self._landing = _Window(earliest=max(1, count), latest=count + grace_tokens)
        if wrap_up is not None:
            self._wrap_up = wrap_up
        self._decide()
        return LandStatus.APPLIED

    def observe(self, token_id: int, text: str) -> tuple[Channel, ...]:
        """Takes an output token; returns the channels of the oldest unresolved tokens.

        A token that may begin a tag of several tokens stays unresolved until the tag is complete or
        broken off. `finish` resolves the rest.

        Raises:
            ValueError: another token than the forced one was emitted.
        """
        if self._queue:
            if token_id != self._queue[0]:
                raise ValueError(f"forced token {self._queue[0]} but token {token_id} was emitted")
            self._queue = self._queue[1:]
        resolved = self._match(token_id, text)
        if not self._queue:
            self._decide()
        return resolved

    def finish(self) -> tuple[Channel, ...]:
        """Resolves what is left when the request ends."""
        return tuple(self._release() for _ in range(len(self._pending)))

    def _match(self, token_id: int, text: str) -> tuple[Channel, ...]:
        if self._tags is None:
            return (Channel.ANSWER,)
        self._pending.append((token_id, text))
        resolved: list[Channel] = []
        while self._pending:
            ids = tuple(pending_id for pending_id, _ in self._pending)
            opens = not self._inside and ids == self._tags.start_ids
            if opens or ids == self._tags.end_ids:
                resolved.extend([Channel.TAG] * len(ids))
                self._pending.clear()
                self._cross(opens)
            elif self._may_become_tag(ids):
                break
            else:
                resolved.append(self._release())
        return tuple(resolved)

    def _may_become_tag(self, ids: tuple[int, ...]) -> bool:
        assert self._tags is not None
        n = len(ids)
        if self._tags.end_ids[:n] == ids:
            return True
        return not self._inside and self._tags.start_ids[:n] == ids

    def _release(self) -> Channel:
        _, text = self._pending.pop(0)
        if not self._inside:
            return Channel.ANSWER
        self.thinking_tokens += 1
        self._text.feed(text)
        return Channel.REASONING

    def _cross(self, opens: bool) -> None:
        self._inside = opens
        self._text = BoundaryTracker(at_line_start=False)
        if not opens:
            self._landing = None
            self._closed = True

    def _count(self) -> int:
        return self.thinking_tokens + len(self._pending)

    def _decide(self) -> None:
        """Starts the wrap-up when it is due. Idempotent."""
        if not self._inside or self._queue or self._tags is None or self._wrap_up is None:
            return
        if self._landed or (self._closed and self._budget is not None):
            # A landed or budgeted request thinks once: a block opened again is closed at once.
            self._queue = self._tags.end_ids[len(self._pending) :]
            return
        by_control, by_budget = self._due(self._landing), self._due(self._budget)
        if not by_control and not by_budget:
            return
        self._landed = True
        self._landed_by = LandedBy.CONTROL if by_control else LandedBy.BUDGET
        if self._pending:
            # The model has begun the end tag itself: go on with it instead of writing it twice.
            self._queue = self._tags.end_ids[len(self._pending) :] + self._wrap_up.tail_ids
        elif self._text.at_line_start:
            self._queue = self._wrap_up.ids_at_line_start
        else:
            self._queue = self._wrap_up.ids

    def _due(self, window: _Window | None) -> bool:
        if window is None:
            return False
        count = self._count()
        if count >= window.latest:
            return True
        return count >= window.earliest and not self._pending and self._text.at_boundary


def _with_tag(ids: Sequence[int], end_ids: Sequence[int]) -> tuple[int, ...]:
    whole, tag = tuple(ids), tuple(end_ids)
    return whole if _find(whole, tag) >= 0 else whole + tag


def _after_tag(ids: tuple[int, ...], end_ids: Sequence[int]) -> int:
    return _find(ids, tuple(end_ids)) + len(end_ids)


def _find(ids: tuple[int, ...], tag: tuple[int, ...]) -> int:
    for i in range(len(ids) - len(tag) + 1):
        if ids[i : i + len(tag)] == tag:
            return i
    return -1
