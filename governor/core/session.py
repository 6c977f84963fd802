"""ThinkingSession: the life of one governed request, from prefill to settlement. Decides; performs
nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TypeAlias

from governor.core.errors import IllegalEvent
from governor.core.outcomes import Cause, WrapUpReason

# A lease's profile is recomputed each time the output has grown by this factor (DESIGN §6).
RENEW_FACTOR = 1.25
FIRST_RENEW_TOKENS = 16


class State(Enum):
    """Where a request is in its life."""

    PREFILL = "prefill"
    THINKING = "thinking"
    LANDING = "landing"
    ANSWERING = "answering"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class ReasoningSeen:
    """`tokens` further reasoning tokens arrived (0 when the delta carried none, such as a role)."""

    tokens: int


@dataclass(frozen=True, slots=True)
class AnswerSeen:
    """`tokens` further answer tokens arrived; the first one ends thinking."""

    tokens: int


@dataclass(frozen=True, slots=True)
class LandingDue:
    """Something asks that thinking end now."""

    reason: WrapUpReason


@dataclass(frozen=True, slots=True)
class LandingFailed:
    """The worker could not be told to land, or did not obey; thinking goes on under its cap."""

    detail: str


@dataclass(frozen=True, slots=True)
class AnswerLooped:
    """The answer itself repeats; the only case in which a stream is cut off."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The exchange is over: `cause` as the shell saw it (`COMPLETED` is refined by the session)."""

    cause: Cause


Event: TypeAlias = ReasoningSeen | AnswerSeen | LandingDue | LandingFailed | AnswerLooped | Ended


@dataclass(frozen=True, slots=True)
class Land:
    """Tell the worker to wrap up thinking at the next boundary within the grace."""

    reason: WrapUpReason


@dataclass(frozen=True, slots=True)
class CutOff:
    """Tell the worker to stop this request."""


@dataclass(frozen=True, slots=True)
class Renew:
    """Renew the lease with what has been generated so far."""

    generated_tokens: int
    thinking_over: bool


@dataclass(frozen=True, slots=True)
class Finish:
    """Settle, exactly once."""

    cause: Cause
    wrap_up_reason: WrapUpReason | None


Action: TypeAlias = Land | CutOff | Renew | Finish

TRANSITIONS: Mapping[State, Mapping[type, State]] = MappingProxyType(
    {
        State.PREFILL: {
            ReasoningSeen: State.THINKING,
            AnswerSeen: State.ANSWERING,
            LandingDue: State.LANDING,
            LandingFailed: State.PREFILL,
            Ended: State.DONE,
        },
        State.THINKING: {
            ReasoningSeen: State.THINKING,
            AnswerSeen: State.ANSWERING,
            LandingDue: State.LANDING,
            LandingFailed: State.THINKING,
            Ended: State.DONE,
        },
        State.LANDING: {
            ReasoningSeen: State.LANDING,
            AnswerSeen: State.ANSWERING,
            LandingDue: State.LANDING,
            LandingFailed: State.THINKING,
            Ended: State.DONE,
        },
        State.ANSWERING: {
            # A re-opened thinking block: counted, closed by the worker at once, never a new state.
            ReasoningSeen: State.ANSWERING,
            AnswerSeen: State.ANSWERING,
            LandingDue: State.ANSWERING,
            LandingFailed: State.ANSWERING,
            AnswerLooped: State.ANSWERING,
            Ended: State.DONE,
        },
        State.DONE: {},
    }
)


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """What binds one session. None means no limit of that kind.

    `cap_tokens` bounds visible reasoning, wrap-up included. `engine_enforces` says that the worker
    ends thinking at `engine_budget_tokens` by itself (native path), so that a crossing of the cap
    is a violation. `land_at_us` is when landing must begin for the answer to meet the deadline.
    """

    cap_tokens: int | None
    engine_budget_tokens: int | None
    engine_enforces: bool
    landable: bool
    land_at_us: int | None = None
    unlanded: bool = False


class ThinkingSession:
    """Synchronous state machine: `receive(event, now_us) -> actions`.

    At most one `Land` is outstanding, `Finish` is emitted exactly once, and an event that the table
    does not allow raises `IllegalEvent` and changes nothing.
    """

    __slots__ = (
        "_cut",
        "_limits",
        "_next_renew",
        "answer_tokens",
        "cap_violated",
        "landing_failures",
        "reasoning_tokens",
        "reopened_tokens",
        "state",
        "wrap_up_reason",
    )

    def __init__(self, limits: SessionLimits) -> None:
        self._limits = limits
        self._next_renew = FIRST_RENEW_TOKENS
        self._cut = False
        self.state = State.PREFILL
        self.reasoning_tokens = 0
        self.answer_tokens = 0
        self.reopened_tokens = 0
        self.wrap_up_reason: WrapUpReason | None = None
        self.landing_failures = 0
        self.cap_violated = False

    @property
    def generated_tokens(self) -> int:
        """Output tokens seen so far."""
        return self.reasoning_tokens + self.answer_tokens

    @property
    def limits(self) -> SessionLimits:
        """What binds the session."""
        return self._limits

    def receive(self, event: Event, now_us: int) -> tuple[Action, ...]:
        """Apply `event`. Raises `IllegalEvent` for one that the state does not allow."""
        after = TRANSITIONS[self.state].get(type(event))
        if after is None:
            raise IllegalEvent(f"{type(event).__name__} while {self.state.value}")
        match event:
            case ReasoningSeen(tokens):
                return self._reasoning(tokens, after, now_us)
            case AnswerSeen(tokens):
                return self._answer(tokens, after)
            case LandingDue(reason):
                return self._land(reason, after)
            case LandingFailed():
                return self._landing_failed(after)
            case AnswerLooped():
                self._cut = True
                return (CutOff(),)
            case Ended(cause):
                return self._ended(cause, after)

    def tick(self, now_us: int) -> tuple[Action, ...]:
        """Time passed without bytes: the deadline may be due."""
        if self._deadline_due(now_us):
            return self.receive(LandingDue(WrapUpReason.DEADLINE), now_us)
        return ()

    def _deadline_due(self, now_us: int) -> bool:
        due = self._limits.land_at_us
        waiting = self.state in (State.PREFILL, State.THINKING)
        return due is not None and now_us >= due and waiting and self.wrap_up_reason is None

    def _reasoning(self, tokens: int, after: State, now_us: int) -> tuple[Action, ...]:
        if self.state is State.ANSWERING:
            self.reopened_tokens += tokens
        self.reasoning_tokens += tokens
        self.state = after
        actions = self._renewals(thinking_over=False)
        cap, budget = self._limits.cap_tokens, self._limits.engine_budget_tokens
        if cap is not None and self.reasoning_tokens > cap:
            self.cap_violated = True
        if after is not State.THINKING or self._limits.unlanded:
            return actions
        if self._deadline_due(now_us):
            return (*actions, *self.receive(LandingDue(WrapUpReason.DEADLINE), now_us))
        # The worker enforces its own budget; the gateway steps in where it does not or did not.
        due = cap if self._limits.engine_enforces else budget
        if due is not None and self.reasoning_tokens >= due + self._limits.engine_enforces:
            return (*actions, *self.receive(LandingDue(WrapUpReason.BUDGET_SPENT), now_us))
        return actions

    def _answer(self, tokens: int, after: State) -> tuple[Action, ...]:
        self.answer_tokens += tokens
        thinking_ended = self.state is not State.ANSWERING
        if thinking_ended:
            self._note_native_landing()
        self.state = after
        actions = self._renewals(thinking_over=True)
        if thinking_ended and not actions:
            # Only the answer is still to come: a much smaller profile, worth telling at once.
            return (Renew(self.generated_tokens, True),)
        return actions

    def _note_native_landing(self) -> None:
        """Thinking that ends with its engine budget used up was ended by the engine, not the model.

        The model may by chance stop on the very token; the two cannot be told apart from counts.
        """
        budget = self._limits.engine_budget_tokens
        enforced = self._limits.engine_enforces and budget is not None
        if self.wrap_up_reason is None and enforced and self.reasoning_tokens >= (budget or 0):
            self.wrap_up_reason = WrapUpReason.BUDGET_SPENT

    def note_landed_by_engine(self, reason: WrapUpReason) -> None:
        """The worker reports that it is forcing the wrap-up of its own accord (signal flag)."""
        if self.wrap_up_reason is None and self.state is not State.DONE:
            self.wrap_up_reason = reason

    def _land(self, reason: WrapUpReason, after: State) -> tuple[Action, ...]:
        already = self.state in (State.LANDING, State.ANSWERING)
        if already or not self._limits.landable or self._limits.unlanded or self.landing_failures:
            return ()
        self.state = after
        self.wrap_up_reason = reason
        return (Land(reason),)

    def _landing_failed(self, after: State) -> tuple[Action, ...]:
        self.landing_failures += 1
        if self.state is State.LANDING:
            self.wrap_up_reason = None
        self.state = after
        return ()

    def _renewals(self, *, thinking_over: bool) -> tuple[Action, ...]:
        if self.generated_tokens < self._next_renew:
            return ()
        while self.generated_tokens >= self._next_renew:
            self._next_renew = int(self._next_renew * RENEW_FACTOR) + 1
        return (Renew(self.generated_tokens, thinking_over),)

    def _ended(self, cause: Cause, after: State) -> tuple[Action, ...]:
        self.state = after
        if cause is Cause.COMPLETED:
            if self._cut:
                cause = Cause.CUT_OFF
            elif self.wrap_up_reason is not None:
                cause = Cause.WRAPPED_UP
        return (Finish(cause, self.wrap_up_reason),)
