"""StreamMachine: bytes of one upstream attempt in, actions for the relay out. Synchronous, no I/O.

It composes the HTTP framing, SSE, the chunk decoder, token counting, loop detection and the
ThinkingSession. The relay performs the actions on transports; tests drive the same machine.
"""

from collections.abc import Sequence
from typing import Any

from governor.core.aggregate import Aggregator
from governor.core.chunks import Chunk, ChunkChoice
from governor.core.errors import UpstreamProtocolError, UpstreamReadFailed
from governor.core.exchange import (
    AbortClient,
    AbortUpstream,
    Acked,
    ClientClosed,
    EndResponse,
    LandNow,
    ReleaseUpstream,
    RenewLease,
    Retry,
    Send,
    SendControl,
    SendHead,
    Settle,
    SignalArrived,
    SignalsLost,
    StreamAction,
    StreamEvent,
    StreamPlan,
    StreamReport,
    Tick,
    UpstreamClosed,
    UpstreamFault,
    WakeAt,
)
from governor.core.framing import Body, End, Head, ResponseDecoder
from governor.core.observe import Observer
from governor.core.outcomes import Cause, LandingPath, ReasoningField, WrapUpReason
from governor.core.render import dump, render_event
from governor.core.session import Action as SessionAction
from governor.core.session import (
    CutOff,
    Ended,
    Finish,
    Land,
    LandingDue,
    LandingFailed,
    Renew,
    State,
    ThinkingSession,
)
from governor.core.sse import SseDecoder, SseEvent

# Worker answers that say "busy" or "dying": worth another worker while nothing reached the client.
# 429/408 sglang router, 503 vLLM, 529 Dynamo (public engine sources).
RETRY_STATUSES = frozenset({408, 429, 500, 502, 503, 529})
DROPPED_HEADERS = frozenset(
    {b"connection", b"transfer-encoding", b"content-length", b"keep-alive", b"date", b"server"}
)


class StreamMachine:
    """One upstream attempt. `receive(bytes | event, now_us) -> actions`.

    After `Settle` or `Retry` the machine is over and every further event returns no action.
    """

    def __init__(self, plan: StreamPlan) -> None:
        self._plan = plan
        self._framing = ResponseDecoder(plan.head_request)
        self._sse = SseDecoder()
        self.session = ThinkingSession(plan.limits)
        self.observer = Observer(plan, self.session)
        drop = tuple(name.decode() for name in plan.strip)
        self._drop_names = drop
        self._aggregate = (
            None if plan.client_streams else Aggregator(plan.endpoint, plan.reasoning_field, drop)
        )
        self._verbatim = plan.reasoning_field is ReasoningField.ENGINE
        self._head: Head | None = None
        self._is_stream = False
        self._plain_body: list[bytes] = []
        self._head_sent = False
        self._fence = 0
        self._landing_path = LandingPath.NONE
        self._report: StreamReport | None = None
        self._over = False
        self._abandoned = False
        self._now_us = 0
        self._detail = ""

    @property
    def over(self) -> bool:
        """Whether the terminal action has been returned."""
        return self._over

    @property
    def report(self) -> StreamReport | None:
        """The account of the attempt, once it is over."""
        return self._report

    @property
    def nothing_sent(self) -> bool:
        """Whether the client has not been sent anything of this attempt."""
        return not self._head_sent

    def start(self, now_us: int) -> tuple[StreamAction, ...]:
        """Arm the deadline; call when the request goes out."""
        due = self._plan.limits.land_at_us
        return () if due is None else (WakeAt(max(due, now_us)),)

    def receive(self, event: bytes | StreamEvent, now_us: int) -> tuple[StreamAction, ...]:
        """Take bytes of the worker's response or another event; return what the relay must do."""
        if self._over:
            return ()
        self._now_us = now_us
        match event:
            case bytes():
                return self._bytes(event)
            case UpstreamClosed():
                return self._closed()
            case UpstreamFault(detail, timed_out):
                return self._fault(detail, Cause.TIMED_OUT if timed_out else Cause.UPSTREAM_ERROR)
            case SignalArrived(row):
                return self._session_actions(self.observer.signal(row, now_us))
            case SignalsLost():
                self.observer.signals_lost()
                return ()
            case Acked():
                return self._acked(event)
            case ClientClosed():
                return (AbortUpstream(), *self._finish(Cause.CLIENT_GONE))
            case LandNow(reason):
                return self._land_if_thinking(reason)
            case Tick():
                return self._session_actions(self.session.tick(now_us))

    # -- upstream bytes ---------------------------------------------------------------------------

    def _bytes(self, data: bytes) -> tuple[StreamAction, ...]:
        try:
            return self._items(self._framing.feed(data))
        except UpstreamProtocolError as fault:
            return self._broken(fault)

    def _closed(self) -> tuple[StreamAction, ...]:
        try:
            actions = self._items(self._framing.finish())
        except UpstreamProtocolError as fault:
            return self._broken(fault)
        except UpstreamReadFailed as fault:
            return self._fault(str(fault), Cause.UPSTREAM_ERROR)
        if self._over:
            return actions
        return (*actions, *self._fault("connection closed", Cause.UPSTREAM_ERROR))

    def _broken(self, fault: UpstreamProtocolError) -> tuple[StreamAction, ...]:
        """Relay what was decoded before the fault, then end with a typed error."""
        decoded = [item for item in fault.decoded if isinstance(item, Head | Body | End)]
        actions = self._items(decoded)
        if self._over:
            return actions
        return (*actions, *self._fault(str(fault), Cause.UPSTREAM_ERROR))

    def _items(self, items: Sequence[Head | Body | End]) -> tuple[StreamAction, ...]:
        actions: list[StreamAction] = []
        out: list[bytes] = []
        for item in items:
            if isinstance(item, Body):
                self._body(item.data, out, actions)
            elif isinstance(item, Head):
                self._take_head(item, actions)
            else:
                self._flush(out, actions)
                self._end(actions)
            if self._over:
                break
        self._flush(out, actions)
        return tuple(actions)

    @staticmethod
    def _flush(out: list[bytes], actions: list[StreamAction]) -> None:
        if out:
            actions.append(Send(out[0] if len(out) == 1 else b"".join(out)))
            out.clear()

    def _take_head(self, head: Head, actions: list[StreamAction]) -> None:
        self._head = head
        kind = head.header(b"content-type") or b""
        if self._plan.relay_only and head.status not in RETRY_STATUSES:
            length = head.header(b"content-length")
            known = int(length) if length is not None and length.isdigit() else None
            if self._plan.head_request or head.status in (204, 304):
                known = 0
            self._send_head(actions, head.status, self._kept_headers(head), known)
            return
        self._is_stream = head.status == 200 and kind.startswith(b"text/event-stream")
        if self._is_stream and self._plan.client_streams:
            self._send_head(actions, 200, self._kept_headers(head), None)

    def _kept_headers(self, head: Head) -> tuple[tuple[bytes, bytes], ...]:
        return tuple((n, v) for n, v in head.headers if n not in DROPPED_HEADERS)

    def _send_head(
        self,
        actions: list[StreamAction],
        status: int,
        headers: tuple[tuple[bytes, bytes], ...],
        length: int | None,
    ) -> None:
        self._head_sent = True
        actions.append(SendHead(status, headers, length))

    def _body(self, data: bytes, out: list[bytes], actions: list[StreamAction]) -> None:
        if self._plan.relay_only and self._head_sent:
            out.append(data)
            return
        if not self._is_stream:
            self._plain_body.append(data)
            return
        try:
            events = self._sse.feed(data)
        except UpstreamProtocolError as fault:
            self._flush(out, actions)
            actions.extend(self._fault(str(fault), Cause.UPSTREAM_ERROR))
            return
        for event in events:
            self._event(event, out, actions)

    def _event(self, event: SseEvent, out: list[bytes], actions: list[StreamAction]) -> None:
        if event.data is None:
            if self._aggregate is None:
                out.append(event.raw)
            return
        if event.data == b"[DONE]":
            self.observer.done_seen = True
            if self._aggregate is None:
                if self._plan.want_block:
                    out.append(self._block_event())
                out.append(event.raw)
            return
        chunk, session_actions = self.observer.chunk(event.data, self._now_us)
        for action in self._session_actions(session_actions):
            actions.append(action)
        if self._aggregate is not None:
            self._aggregate.add(event.data)
            return
        out.append(self._shaped(event, chunk))

    def _shaped(self, event: SseEvent, chunk: Chunk | None) -> bytes:
        """The event as the client gets it. What cannot be decoded passes through unchanged."""
        if chunk is None:
            return event.raw
        if chunk.usage is not None and not chunk.choices and self._plan.drop_usage_event:
            return b""
        if not self._verbatim and any(_has_reasoning(choice) for choice in chunk.choices):
            assert event.data is not None
            return render_event(event.data, self._plan.reasoning_field, self._drop_names)
        return self.observer.stripped(event.raw)

    def _end(self, actions: list[StreamAction]) -> None:
        assert self._head is not None
        reusable = self._framing.reusable
        if self._plan.relay_only and self._head_sent:
            actions.extend((ReleaseUpstream(reusable), EndResponse()))
            actions.extend(self._finish(Cause.COMPLETED))
            return
        if not self._is_stream:
            self._end_plain(self._head, actions)
            return
        if not self.observer.complete:
            actions.extend(self._fault("stream ended early", Cause.UPSTREAM_ERROR))
            return
        actions.append(ReleaseUpstream(reusable))
        cause = Cause.UPSTREAM_ERROR if self.observer.error is not None else Cause.COMPLETED
        tail = self._finish(cause)
        if self._aggregate is not None:
            self._send_aggregate(self._aggregate, actions)
        else:
            actions.append(EndResponse())
        actions.extend(tail)

    def _end_plain(self, head: Head, actions: list[StreamAction]) -> None:
        """A JSON answer: an error of the worker's, or a request relayed without streaming."""
        if head.status in RETRY_STATUSES and not self._head_sent:
            self._over = True
            self._detail = f"worker answered {head.status}"
            actions.append(ReleaseUpstream(self._framing.reusable))
            actions.append(Retry(self._detail, head.status))
            return
        body = b"".join(self._plain_body)
        if head.status < 400:
            self.observer.plain(body)
        cause = Cause.COMPLETED if head.status < 400 else Cause.UPSTREAM_ERROR
        self._detail = "" if head.status < 400 else f"worker answered {head.status}"
        actions.append(ReleaseUpstream(self._framing.reusable))
        tail = self._finish(cause)
        self._send_head(actions, head.status, self._kept_headers(head), len(body))
        actions.extend((Send(body), EndResponse(), *tail))

    def _send_aggregate(self, aggregate: Aggregator, actions: list[StreamAction]) -> None:
        status = 200
        if aggregate.error is not None:
            status, body = 502, dump({"error": aggregate.error})
        else:
            body = aggregate.body(self._block() if self._plan.want_block else None)
        headers = ((b"content-type", b"application/json"), *self._result_headers())
        self._send_head(actions, status, headers, len(body))
        actions.extend((Send(body), EndResponse()))

    # -- faults and the end -----------------------------------------------------------------------

    def _fault(self, detail: str, cause: Cause) -> tuple[StreamAction, ...]:
        self._detail = detail
        if not self._head_sent:
            self._over = True
            return (AbortUpstream(), self._retry(detail, cause))
        if self._plan.relay_only:
            return (AbortUpstream(), AbortClient(), *self._finish(cause))
        message = {
            "message": f"the worker failed: {detail}",
            "type": "upstream_error",
            "code": cause.value,
            "param": None,
        }
        event = b"data: " + dump({"error": message}) + b"\n\n"
        return (AbortUpstream(), Send(event), EndResponse(), *self._finish(cause))

    def _retry(self, detail: str, cause: Cause) -> Retry:
        return Retry(detail, None, cause is Cause.TIMED_OUT, not self._abandoned)

    def _finish(self, cause: Cause) -> tuple[StreamAction, ...]:
        return self._session_actions(self.session.receive(Ended(cause), self._now_us))

    def give_up(self, cause: Cause, now_us: int) -> tuple[StreamAction, ...]:
        """The relay will not retry: settle an attempt that ended in `Retry`."""
        if self._report is not None:
            return ()
        self._now_us = now_us
        self._over = False
        return self._finish(cause)

    def abandon(self, detail: str, now_us: int) -> tuple[StreamAction, ...]:
        """An exception escaped from this machine: end the exchange with a typed error."""
        if self._over:
            return ()
        self._now_us = now_us
        self._abandoned = True
        return self._fault(detail, Cause.UPSTREAM_ERROR)

    # -- landing ----------------------------------------------------------------------------------

    def _session_actions(self, actions: tuple[SessionAction, ...]) -> tuple[StreamAction, ...]:
        out: list[StreamAction] = []
        for action in actions:
            match action:
                case Land(reason):
                    out.extend(self._control_land(reason))
                case CutOff():
                    out.extend(self._control("cut", None))
                case Renew(generated, over):
                    out.append(RenewLease(generated, over))
                case Finish(cause, reason):
                    self._over = True
                    self._report = self.observer.report(
                        cause, reason, self._path_of(reason), self._now_us, self._detail
                    )
                    out.append(Settle(self._report))
        return tuple(out)

    def _land_if_thinking(self, reason: WrapUpReason) -> tuple[StreamAction, ...]:
        return self._session_actions(self.session.receive(LandingDue(reason), self._now_us))

    def _control_land(self, reason: WrapUpReason) -> tuple[StreamAction, ...]:
        arg: dict[str, Any] = {
            "grace_tokens": self._plan.grace_tokens,
            "reason": reason.value,
            "text": self._plan.wrap_up_text,
        }
        return self._control("land", arg)

    def _control(self, op: str, arg: dict[str, Any] | None) -> tuple[StreamAction, ...]:
        if self._plan.control_path is LandingPath.NONE:
            self.session.receive(LandingFailed("no landing path"), self._now_us)
            return ()
        self._fence += 1
        return (SendControl(op, arg, self._fence),)

    def _acked(self, event: Acked) -> tuple[StreamAction, ...]:
        status = event.ack.status if event.ack is not None else "undelivered"
        if status in ("applied", "already_landing"):
            self._landing_path = self._plan.control_path
        elif status not in ("thinking_over", "stale_fence") and self.session.state is State.LANDING:
            detail = event.detail or status
            return self._session_actions(self.session.receive(LandingFailed(detail), self._now_us))
        return ()

    # -- what is shown ----------------------------------------------------------------------------

    def _block(self) -> dict[str, object]:
        """The `governor` block: asked, granted, path (static) and used, cause, landed (so far)."""
        session = self.session
        ended = session.state is State.DONE and self._report is not None
        reason = session.wrap_up_reason
        reasoning, answer, exact = self.observer.counts()
        return {
            **dict(self._plan.describe),
            "used_tokens": reasoning,
            "answer_tokens": answer,
            "exact": exact,
            "cause": self._report.cause.value if ended and self._report else self._likely_cause(),
            "landed": reason.value if reason is not None else None,
            "landing_path": self._path_of(reason).value,
            "cap_violated": session.cap_violated,
        }

    def _path_of(self, reason: WrapUpReason | None) -> LandingPath:
        native = reason is WrapUpReason.BUDGET_SPENT and self._landing_path is LandingPath.NONE
        return LandingPath.NATIVE if native else self._landing_path

    def _likely_cause(self) -> str:
        landed = self.session.wrap_up_reason is not None
        return (Cause.WRAPPED_UP if landed else Cause.COMPLETED).value

    def _block_event(self) -> bytes:
        head = {"object": "chat.completion.chunk", **self.observer.identity, "choices": []}
        return b"data: " + dump({**head, "governor": self._block()}) + b"\n\n"

    def _result_headers(self) -> tuple[tuple[bytes, bytes], ...]:
        reason = self.session.wrap_up_reason
        cause = self._report.cause.value if self._report is not None else self._likely_cause()
        return (
            (b"x-governor-budget-used", str(self.observer.counts()[0]).encode()),
            (b"x-governor-cause", cause.encode()),
            (b"x-governor-landed", (reason.value if reason else "no").encode()),
        )


def _has_reasoning(choice: ChunkChoice) -> bool:
    delta = choice.delta
    return delta is not None and (
        delta.reasoning is not None or delta.reasoning_content is not None
    )
