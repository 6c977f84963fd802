"""LiveRequest: one client request from its admission to its settlement. Glue, no decisions."""

import asyncio
import logging
from dataclasses import replace
from typing import Any, Protocol

from governor.core.budget import BudgetGrant
from governor.core.dispatch import Arrived
from governor.core.estimator import Observation
from governor.core.exchange import Acked, LandNow, Retry, SignalArrived, SignalsLost, StreamReport
from governor.core.families import FamilyProfile
from governor.core.forecast import Forecast
from governor.core.lease import Settlement
from governor.core.outcomes import Cause, Mode, Reason, WrapUpReason
from governor.core.policy import TenantPolicy
from governor.core.signals import Control, ControlAck, ControlOp, SignalRow
from governor.core.stream import StreamMachine
from governor.core.units import US_PER_S
from governor.gateway.exchange import ClientExchange
from governor.gateway.plan import Attempt, WorkerFacts, describe, plan_of, settlement_of
from governor.gateway.relay import Relay
from governor.gateway.upstream import UpstreamPool
from governor.gateway.wire import ParsedRequest
from governor.services.ticket import Admitted

log = logging.getLogger("governor.request")

# Attempts before a failing request is refused: the first, and one elsewhere (DESIGN §12).
MAX_ATTEMPTS = 2
# Pause between comments that keep a waiting client's connection open (DESIGN §6); common proxies
# close silent connections after 30 to 60 s.
COMMENT_EVERY_S = 10.0


class Shell(Protocol):
    """What a request needs of its gateway. Called synchronously."""

    idle_timeout_s: float

    def now_us(self) -> int: ...

    def pool(self, worker_id: str) -> UpstreamPool: ...

    def facts(self, worker_id: str) -> WorkerFacts: ...

    def upstream_request(self, attempt: Attempt, exchange: ClientExchange) -> bytes: ...

    def arrive(self, request: "LiveRequest", arrived: Arrived) -> None: ...

    def gone(self, request: "LiveRequest") -> None: ...

    def withdraw(self, request: "LiveRequest") -> None: ...

    def settle(self, request: "LiveRequest", settlement: Settlement) -> None: ...

    def renew(self, request: "LiveRequest", generated_tokens: int, thinking_over: bool) -> None: ...

    def control(self, request: "LiveRequest", control: Control) -> None: ...

    def worker_failed(self, worker_id: str, detail: str) -> None: ...

    def opened(self, request: "LiveRequest") -> None: ...

    def refused(
        self, request: "LiveRequest", reason: Reason, retry_after_us: int, queued_us: int
    ) -> None: ...

    def upstream_failed(
        self, request: "LiveRequest", detail: str, status: int | None, timed_out: bool
    ) -> None: ...

    def failed(self, request: "LiveRequest") -> None: ...

    def ended(
        self, request: "LiveRequest", report: StreamReport, observation: Observation | None
    ) -> None: ...

    def fault(self, where: str) -> None: ...


class LiveRequest:
    """Ticket of the dispatcher and hooks of the relay, for one client request."""

    def __init__(
        self,
        shell: Shell,
        exchange: ClientExchange,
        parsed: ParsedRequest,
        policy: TenantPolicy,
        mode: Mode,
        forecast: Forecast,
        family: FamilyProfile | None,
        arrived: Arrived,
    ) -> None:
        self._shell = shell
        self.exchange = exchange
        self.parsed = parsed
        self.policy = policy
        self.mode = mode
        self.forecast = forecast
        self.family = family
        self._arrived = arrived
        self.attempt: Attempt | None = None
        self.relay: Relay | None = None
        self.queued_us = 0
        self.queue_position = 0
        self._over = False
        self._last_attempt = False
        self._machine: StreamMachine | None = None
        self._waiting: asyncio.TimerHandle | None = None

    @property
    def id(self) -> str:
        """The decision id, which is also the worker's request id."""
        return self._arrived.request_id

    @property
    def grant(self) -> BudgetGrant | None:
        """What was granted, once it was."""
        return self.attempt.grant if self.attempt is not None else None

    def begin(self) -> None:
        """Ask for admission."""
        self.exchange.on_closed = self._client_gone_waiting
        self._shell.arrive(self, self._arrived)

    # -- Ticket -----------------------------------------------------------------------------------

    def admitted(self, admitted: Admitted) -> None:
        """Open the upstream attempt on the worker that admission chose."""
        self._stop_waiting()
        self.queued_us += admitted.queued_us
        number = self._arrived.attempt
        enforced = self.mode is Mode.ENFORCE
        self.attempt = Attempt(
            parsed=self.parsed,
            policy=self.policy,
            mode=self.mode,
            grant=admitted.grant if enforced else None,
            forecast=self.forecast,
            family=self.family,
            worker=self._shell.facts(admitted.worker_id),
            rid=self.id,
            number=number,
            queued_us=self.queued_us,
            head_request=self.exchange.method == "HEAD",
        )
        self._machine = StreamMachine(plan_of(self.attempt, self.id))
        self.relay = Relay(
            self.exchange,
            self._shell.pool(admitted.worker_id),
            self._shell.upstream_request(self.attempt, self.exchange),
            self._machine,
            self._shell.now_us,
            self,
            idle_timeout_s=self._shell.idle_timeout_s,
        )
        self._shell.opened(self)
        self.relay.open()

    def shed(self, reason: Reason, retry_after_us: int, queued_us: int) -> None:
        """Admission refused the request."""
        self._over = True
        self._stop_waiting()
        self.exchange.on_closed = None
        self._shell.refused(self, reason, retry_after_us, self.queued_us + queued_us)

    def failed(self) -> None:
        """Governor itself failed in opening the upstream attempt."""
        self._over = True
        self._stop_waiting()
        self.exchange.on_closed = None
        self._shell.failed(self)

    def queued(self, position: int, reason: Reason) -> None:
        """The request waits in the gateway. Until `commit_after` nothing is sent, so that a refusal
        is a real status; after it a streaming client gets 200 and comments."""
        self.queue_position = position
        streams = self.parsed.demand.stream and self.parsed.endpoint != "other"
        if self._waiting is None and streams:
            self._comment_in(self.policy.queue.commit_after_s)

    def _comment_in(self, seconds: float) -> None:
        self._waiting = asyncio.get_running_loop().call_later(seconds, self._comment)

    def _comment(self) -> None:
        if not self._over and self.relay is None and not self.exchange.closed:
            self.exchange.commit(((b"x-governor-decision", self.id.encode()),))
            self.exchange.write(b": queued, position %d\n\n" % self.queue_position)
            self._comment_in(COMMENT_EVERY_S)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def land_for_pressure(self) -> None:
        """The price of KV asks for this request's blocks."""
        self.land(WrapUpReason.PRESSURE)

    def lease_lost(self) -> None:
        """Cut the upstream: the blocks are no longer ours."""
        log.warning("lease of %s expired; cutting its upstream", self.id)
        if self.relay is not None:
            self.relay.abandon("the lease on the worker's memory expired")

    # -- RelayHooks -------------------------------------------------------------------------------

    def head_headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """Governor's headers, on every response of a worker."""
        assert self.attempt is not None
        told = describe(self.attempt, self.id)
        names = (
            ("x-governor-decision", "decision_id"),
            ("x-governor-mode", "mode"),
            ("x-governor-budget-asked", "asked_tokens"),
            ("x-governor-budget-granted", "granted_tokens"),
            ("x-governor-budget-reason", "granted_reason"),
            ("x-governor-budget-path", "budget_path"),
            ("x-governor-queue-ms", "queued_ms"),
            ("x-governor-worker", "worker"),
        )
        headers = [
            (name.encode(), str(told[key]).encode()) for name, key in names if told[key] is not None
        ]
        if told["notes"]:
            headers.append(
                (b"x-governor-notes", "; ".join(told["notes"]).encode("latin-1", "replace"))
            )
        return tuple(headers)

    def control(self, op: str, arg: dict[str, Any] | None, fence: int) -> None:
        """Send a control message; the answer comes back through `acked`."""
        assert self.attempt is not None
        self._shell.control(self, Control(self.id, self.attempt.number, ControlOp(op), arg, fence))

    def renew(self, generated_tokens: int, *, thinking_over: bool) -> None:
        """The stream reached a checkpoint."""
        self._shell.renew(self, generated_tokens, thinking_over)

    def retry(self, failed: Retry) -> None:
        """The attempt failed before a byte reached the client."""
        assert self.attempt is not None
        assert self._machine is not None
        detail, status, timed_out = failed.detail, failed.status, failed.timed_out
        if status is None and failed.workers_fault:
            self._shell.worker_failed(self.attempt.worker.worker_id, detail)
        final = self._arrived.attempt + 1 >= MAX_ATTEMPTS or self.exchange.closed
        final = final or self._last_attempt
        report = self._give_up(timed_out=timed_out)
        self._shell.settle(self, settlement_of(report, self.parsed.demand.prompt_tokens))
        if final:
            self._over = True
            self._shell.ended(self, report, None)
            self._shell.upstream_failed(self, detail, status, timed_out)
            return
        self._arrived = _elsewhere(self._arrived, self.attempt.worker.worker_id)
        self.relay = None
        self.begin()

    def _give_up(self, *, timed_out: bool) -> StreamReport:
        assert self._machine is not None
        cause = Cause.TIMED_OUT if timed_out else Cause.UPSTREAM_ERROR
        if self.exchange.closed:
            cause = Cause.CLIENT_GONE
        self._machine.give_up(cause, self._shell.now_us())
        report = self._machine.report
        assert report is not None
        return report

    def settled(self, report: StreamReport) -> None:
        """The request is over: settle, learn, record, once."""
        if self._over:
            return
        self._over = True
        self._shell.settle(self, settlement_of(report, self.parsed.demand.prompt_tokens))
        self._shell.ended(self, report, self._observation(report))

    def fault(self, where: str) -> None:
        """An exception in Governor was caught."""
        self._shell.fault(where)

    # -- other events -----------------------------------------------------------------------------

    def signal(self, row: SignalRow) -> None:
        """A row of the worker's feed for this request."""
        if self.relay is not None:
            self.relay.feed(SignalArrived(row))

    def signals_lost(self) -> None:
        """The worker's feed went away."""
        if self.relay is not None:
            self.relay.feed(SignalsLost())

    def acked(self, ack: ControlAck | None, detail: str) -> None:
        """The worker answered a control message, or could not be reached."""
        if self.relay is not None:
            self.relay.feed(Acked(ack, detail))

    def land(self, reason: WrapUpReason) -> str:
        """Ask that thinking end; returns the session's state."""
        if self.relay is None:
            return "queued"
        self.relay.feed(LandNow(reason))
        return self.relay.machine.session.state.value

    def stop(self, detail: str) -> None:
        """The gateway ends: an open stream gets a typed error, whoever waits is refused."""
        self._last_attempt = True
        if self.relay is not None:
            self.relay.abandon(detail)
        elif not self._over:
            self._shell.withdraw(self)
            self.shed(Reason.DRAINING, US_PER_S, 0)

    def _client_gone_waiting(self) -> None:
        self._over = True
        self._stop_waiting()
        self._shell.gone(self)

    def _observation(self, report: StreamReport) -> Observation | None:
        """What the forecast learns; None where nothing of the natural length was seen."""
        attempt = self.attempt
        if attempt is None or report.cause is Cause.UPSTREAM_ERROR:
            return None
        off = attempt.grant is not None and attempt.grant.thinking_off
        thinking: int | None = None if off or not attempt.thinks else report.reasoning_tokens
        if thinking is not None and report.wrap_up_reason is not None:
            thinking = max(0, thinking - attempt.worker.wrap_up_tokens)
        return Observation(
            model=self.parsed.demand.model,
            effort=self.parsed.demand.ask.effort,
            thinking_tokens=thinking,
            answer_tokens=report.answer_tokens,
            cause=report.cause,
            wrap_up_reason=report.wrap_up_reason,
        )


def _elsewhere(arrived: Arrived, failed: str) -> Arrived:
    return replace(
        arrived, attempt=arrived.attempt + 1, excluded=arrived.excluded | frozenset({failed})
    )
