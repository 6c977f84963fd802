"""What crosses the StreamMachine's border: its plan, the events it takes, the actions it returns,
its report."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from governor.core.chunks import Chunk, decode_chunk
from governor.core.loops import LoopVerdict
from governor.core.meter import CountSource
from governor.core.outcomes import Cause, LandingPath, ReasoningField, WrapUpReason
from governor.core.policy import LoopPolicy
from governor.core.session import SessionLimits, State
from governor.core.signals import ControlAck, SignalRow


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """Everything that is fixed for one upstream attempt before its first byte.

    `strip` names members that the gateway asked for and the client did not; they never reach the
    client. `client_streams=False` aggregates the upstream stream into one JSON body. `governed` is
    false for streams that are relayed and counted but never landed (mode off, n > 1, unknown
    family). `relay_only` passes any response on as it comes, unread (paths that are not ours).
    `describe` is the static part of the `governor` block.
    """

    rid: str
    attempt: int
    endpoint: str
    client_streams: bool
    limits: SessionLimits
    governed: bool = True
    strip: tuple[bytes, ...] = ()
    drop_usage_event: bool = False
    want_block: bool = False
    reasoning_field: ReasoningField = ReasoningField.ENGINE
    grace_tokens: int = 32
    wrap_up_text: str | None = None
    control_path: LandingPath = LandingPath.NONE
    signals_expected: bool = False
    think_end_ids: tuple[int, ...] = ()
    loops: LoopPolicy = field(default_factory=LoopPolicy)
    describe: tuple[tuple[str, Any], ...] = ()
    decode: Callable[[bytes], Chunk] = decode_chunk
    relay_only: bool = False
    head_request: bool = False


@dataclass(frozen=True, slots=True)
class UpstreamClosed:
    """The worker's connection ended (EOF)."""


@dataclass(frozen=True, slots=True)
class UpstreamFault:
    """The worker could not be reached, broke the protocol, or was silent for too long."""

    detail: str
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class SignalArrived:
    """A row of the worker's signal feed for this request."""

    row: SignalRow


@dataclass(frozen=True, slots=True)
class SignalsLost:
    """The worker's signal feed went away; the stream has to do."""


@dataclass(frozen=True, slots=True)
class Acked:
    """The worker answered a control message; `None` means that it could not be delivered."""

    ack: ControlAck | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ClientClosed:
    """The client went away."""


@dataclass(frozen=True, slots=True)
class LandNow:
    """An operator or the price of KV asks that this request's thinking end."""

    reason: WrapUpReason


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed; deadlines may be due."""


StreamEvent: TypeAlias = (
    UpstreamClosed
    | UpstreamFault
    | SignalArrived
    | SignalsLost
    | Acked
    | ClientClosed
    | LandNow
    | Tick
)


@dataclass(frozen=True, slots=True)
class SendHead:
    """Start the client's response. `content_length=None` means a stream (chunked)."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    content_length: int | None


@dataclass(frozen=True, slots=True)
class Send:
    """Write body bytes to the client; one action for each read of the upstream."""

    data: bytes


@dataclass(frozen=True, slots=True)
class EndResponse:
    """The client's response is complete."""


@dataclass(frozen=True, slots=True)
class ReleaseUpstream:
    """The upstream connection is done with; it may be kept when `reusable`."""

    reusable: bool


@dataclass(frozen=True, slots=True)
class AbortUpstream:
    """Close the upstream connection so that the worker stops generating."""


@dataclass(frozen=True, slots=True)
class AbortClient:
    """Close the client's connection in mid-body: the only way to say that a body is not whole."""


@dataclass(frozen=True, slots=True)
class SendControl:
    """Send a control message (contract a) to the worker."""

    op: str
    arg: dict[str, Any] | None
    fence: int


@dataclass(frozen=True, slots=True)
class Retry:
    """Nothing reached the client yet and the attempt failed: try elsewhere.

    `workers_fault` is false where Governor itself gave the attempt up.
    """

    detail: str
    status: int | None
    timed_out: bool = False
    workers_fault: bool = True


@dataclass(frozen=True, slots=True)
class RenewLease:
    """Swap the lease's profile for one conditional on what has been generated."""

    generated_tokens: int
    thinking_over: bool


@dataclass(frozen=True, slots=True)
class StreamReport:
    """How the request ended and what it used. `exact` tells counted from estimated tokens."""

    cause: Cause
    wrap_up_reason: WrapUpReason | None
    landing_path: LandingPath
    prompt_tokens: int | None
    cached_tokens: int | None
    reasoning_tokens: int
    answer_tokens: int
    exact: bool
    count_source: CountSource
    reopened_tokens: int
    answer_characters: int
    tool_calls: int
    finish_reason: str | None
    cap_violated: bool
    landing_failures: int
    loop: LoopVerdict | None
    signal_gaps: int
    observe_faults: int
    last_state: State
    first_token_us: int | None
    ended_us: int
    detail: str = ""

    @property
    def answered(self) -> bool:
        """Whether the client got an answer: text or a tool call."""
        return self.answer_characters > 0 or self.tool_calls > 0


@dataclass(frozen=True, slots=True)
class Settle:
    """The terminal action, exactly once for each attempt that is not retried."""

    report: StreamReport


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Call back with `Tick` at this time."""

    at_us: int


StreamAction: TypeAlias = (
    SendHead
    | Send
    | EndResponse
    | ReleaseUpstream
    | AbortUpstream
    | AbortClient
    | SendControl
    | Retry
    | RenewLease
    | Settle
    | WakeAt
)
