"""The worker's side of contract (a), control: reads messages, applies them to requests."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from governor.core.signals import CONTROL_SCHEMA
from governor_probes.embedded.request import EngineRequest
from governor_probes.embedded.vocabulary import Vocabulary
from governor_probes.landing_state import ThinkTags

_REMEMBERED_FENCES = 4096


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """A control message as sent; `arg` and `op` are checked when it is applied."""

    rid: str
    attempt: int
    op: str
    arg: dict[str, Any]
    fence: int


@dataclass(frozen=True, slots=True)
class ControlReply:
    """The acknowledgement. `position` is the number of output tokens at the time of applying."""

    rid: str
    attempt: int
    fence: int
    status: str
    position: int | None = None
    detail: str | None = None

    def body(self) -> dict[str, Any]:
        """The reply as the contract spells it."""
        return {
            "schema": CONTROL_SCHEMA,
            "rid": self.rid,
            "attempt": self.attempt,
            "fence": self.fence,
            "status": self.status,
            "position": self.position,
            "detail": self.detail,
        }


def parse_control(body: object) -> ControlRequest:
    """Reads a message body.

    Raises:
        ValueError: a field is missing or of the wrong type; the text says which.
    """
    if not isinstance(body, dict):
        raise ValueError("the body must be an object")
    if body.get("schema") != CONTROL_SCHEMA:
        raise ValueError(f"schema must be {CONTROL_SCHEMA}")
    rid, attempt, op, fence = (body.get(k) for k in ("rid", "attempt", "op", "fence"))
    if not isinstance(rid, str) or not rid:
        raise ValueError("rid must be a non-empty string")
    if not isinstance(attempt, int) or isinstance(attempt, bool) or attempt < 0:
        raise ValueError("attempt must be an integer of at least 0")
    if not isinstance(op, str):
        raise ValueError("op must be a string")
    if not isinstance(fence, int) or isinstance(fence, bool):
        raise ValueError("fence must be an integer")
    arg = body.get("arg")
    if arg is not None and not isinstance(arg, dict):
        raise ValueError("arg must be an object or null")
    return ControlRequest(rid, attempt, op, arg or {}, fence)


class ControlDesk:
    """Knows the running requests by (rid, attempt) and the last fence of each rid.

    Runs on the engine's thread, between steps.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        tags: ThinkTags | None,
        cut: Callable[[EngineRequest], None],
    ) -> None:
        self._vocabulary = vocabulary
        self._tags = tags
        self._cut = cut
        self._running: dict[tuple[str, int], EngineRequest] = {}
        self._fences: OrderedDict[str, int] = OrderedDict()

    def register(self, request: EngineRequest) -> None:
        """A request starts; of several with the same rid and attempt the newest is controlled."""
        self._running[request.rid, request.attempt] = request

    def forget(self, request: EngineRequest) -> None:
        """A request has ended."""
        if self._running.get((request.rid, request.attempt)) is request:
            del self._running[request.rid, request.attempt]

    def apply(self, message: ControlRequest) -> ControlReply:
        """Applies one message. Repeating a message changes nothing."""
        request = self._running.get((message.rid, message.attempt))
        if request is None:
            return _reply(message, "unknown_request")
        last = self._fences.get(message.rid)
        if last is not None and message.fence < last:
            return _reply(message, "stale_fence", request, f"last fence was {last}")
        try:
            status = self._perform(request, message)
        except ValueError as error:
            return _reply(message, "invalid", request, str(error))
        self._fences[message.rid] = message.fence
        self._fences.move_to_end(message.rid)
        while len(self._fences) > _REMEMBERED_FENCES:
            self._fences.popitem(last=False)
        return _reply(message, status, request)

    def _perform(self, request: EngineRequest, message: ControlRequest) -> str:
        arg = message.arg
        if message.op == "cut":
            self._cut(request)
            return "applied"
        if message.op == "budget":
            tokens = _count(arg, "tokens")
            return str(request.landing.set_budget(tokens, _count(arg, "grace_tokens", 0)))
        if message.op == "land":
            grace = _count(arg, "grace_tokens", 0)
            text = arg.get("text")
            if text is not None and not isinstance(text, str):
                raise ValueError("text must be a string or null")
            wrap_up = None
            if text is not None and self._tags is not None:
                wrap_up = self._vocabulary.wrap_up(text, self._tags)
            return str(request.landing.land(grace, wrap_up))
        raise ValueError(f"unknown op {message.op!r}")


def _reply(
    message: ControlRequest,
    status: str,
    request: EngineRequest | None = None,
    detail: str | None = None,
) -> ControlReply:
    position = None if request is None else request.position
    return ControlReply(message.rid, message.attempt, message.fence, status, position, detail)


def _count(arg: dict[str, Any], name: str, default: int | None = None) -> int:
    value = arg.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name} must be an integer of at least 0")
    return value
