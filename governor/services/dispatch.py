"""Dispatcher: pumps the Scheduler. Feeds it events, performs its actions on ledger and tickets.

Decides nothing. Fails open: an exception in a decision, or a ledger that is away, lets the request
through to a worker up to a safe number of such requests, counted and logged (DESIGN §12).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

from governor.core.admission import AdmissionSettings
from governor.core.dispatch import (
    Abandon,
    Action,
    Arrived,
    Draining,
    Event,
    Gone,
    Judged,
    LandForPressure,
    LeaseRefused,
    PolicyChanged,
    Queued,
    Renew,
    Renewed,
    Reserve,
    Reserved,
    Scraped,
    Settled,
    Shed,
    Tick,
    WakeAt,
)
from governor.core.errors import IllegalEvent, LedgerUnavailable
from governor.core.fleet import WorkerView
from governor.core.lease import Lease, RefusalReason, Refused, Settlement
from governor.core.outcomes import Cause, Reason
from governor.core.policy import TenantPolicy
from governor.core.record import record_of
from governor.core.request import RequestState
from governor.core.scheduler import Scheduler
from governor.ports import Clock, Ledger
from governor.services.ticket import Admitted, DecisionSink, DispatchMetrics, Ticket

log = logging.getLogger("governor.dispatch")

# Requests that may run at once past a broken decision path, per worker. Small enough that no
# engine thrashes on it, large enough that traffic flows (DESIGN §12: a safe concurrency limit).
FAIL_OPEN_CONCURRENCY = 8
# A decision that takes longer than this is counted as slow (DESIGN §12).
SLOW_DECISION_US = 5_000

UNUSED = Settlement(0, 0, 0, 0, Cause.CLIENT_GONE)
UNOPENED = Settlement(0, 0, 0, 0, Cause.UPSTREAM_ERROR)
# Told to the scheduler for a lease that was never asked for or whose answer is not known.
NOT_TAKEN = Refused(RefusalReason.LEDGER_FULL, 0)


@dataclass(slots=True)
class _Live:
    ticket: Ticket
    arrived: Arrived
    lease: Lease | None = None
    worker_id: str | None = None
    open: bool = False
    reserving: bool = False
    gone: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Dispatcher:
    """Owns the Scheduler and the leases of this process."""

    def __init__(
        self,
        scheduler: Scheduler,
        ledger: Ledger,
        clock: Clock,
        metrics: DispatchMetrics,
        sink: DecisionSink,
        settings: AdmissionSettings,
        code_version: str,
        *,
        immediate_ledger: bool = False,
    ) -> None:
        self.scheduler = scheduler
        self._ledger = ledger
        self._clock = clock
        self._metrics = metrics
        self._sink = sink
        self._settings = settings
        self._code_version = code_version
        self.policy_hash = ""
        self._live: dict[str, _Live] = {}
        self._views: dict[str, WorkerView] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake: asyncio.TimerHandle | None = None
        self._closed = False
        self._immediate = immediate_ledger
        self._todo: deque[Action] = deque()
        self._performing = False
        # The moment of the scheduler's last event. The ledger is asked as of that moment, so that
        # both look at the same headroom bins.
        self._at_us = clock.now_us()

    # -- events from the requests -----------------------------------------------------------------

    def arrive(self, ticket: Ticket, arrived: Arrived) -> None:
        """A request wants to start (or to start again elsewhere)."""
        live = _Live(ticket, arrived)
        self._live[arrived.request_id] = live
        started_us = self._at_us = self._clock.now_us()
        try:
            actions = self.scheduler.receive(arrived, started_us)
        except Exception:
            log.exception("admission failed; failing open")
            # What the scheduler had taken in of it must not be dispatched a second time.
            self._withdraw(arrived.request_id)
            self._fail_open(arrived.request_id, live, "admission")
            self._release_lost()
            return
        took_us = self._clock.now_us() - started_us
        if took_us > SLOW_DECISION_US:
            self._metrics.slow_decision(took_us)
        self._perform(actions)

    def gone(self, request_id: str) -> None:
        """The client left while its request waited."""
        live = self._live.get(request_id)
        if live is None or live.lease is not None or live.open:
            return
        live.gone = True
        self._receive(Gone(request_id))
        if not live.reserving:
            self._live.pop(request_id, None)

    def renewed(self, request_id: str, generated_tokens: int, *, thinking_over: bool) -> None:
        """A stream reached a checkpoint."""
        live = self._live.get(request_id)
        if live is not None and live.lease is not None:
            self._receive(Renewed(request_id, generated_tokens, thinking_over))

    def settled(self, request_id: str, settlement: Settlement) -> None:
        """A request that was admitted has ended. Settles the lease exactly once."""
        live = self._live.pop(request_id, None)
        if live is None or live.open:
            return
        # The ledger's task starts first, so that what the scheduler dispatches next finds room.
        self._spawn(self._settle(live, settlement))
        self._receive(Settled(request_id, settlement))

    @property
    def stale_after_us(self) -> int:
        """Age from which a worker's metrics are stale."""
        return self._settings.placement.stale_after_us

    @property
    def open_leases(self) -> int:
        """Requests of this process that hold a lease."""
        return sum(1 for live in self._live.values() if live.lease is not None)

    # -- events from the fleet and the operator ----------------------------------------------------

    async def worker_seen(self, view: WorkerView) -> None:
        """A worker was scraped or introduced; a changed epoch releases the leases of the old."""
        self._views[view.worker_id] = view
        await self._sweep(view)
        self._receive(Scraped(view))

    def policies_changed(self, policies: dict[str, TenantPolicy], policy_hash: str) -> None:
        """A policy file was accepted, whole."""
        self.policy_hash = policy_hash
        self._receive(PolicyChanged(policies))

    def drain(self, worker_id: str, draining: bool) -> None:
        """A worker takes no more requests, or takes them again."""
        self._receive(Draining(worker_id, draining))

    def worker_failed(self, worker_id: str) -> None:
        """A connection to a worker failed: its metrics are no longer to be believed."""
        view = self._views.get(worker_id)
        if view is not None:
            self._receive(Scraped(replace(view, scraped_us=None)))

    def tick(self) -> None:
        """Time passed."""
        self._receive(Tick())

    async def expire(self) -> None:
        """Orphan the leases whose time is over and cut what still runs on them."""
        for view in list(self._views.values()):
            await self._sweep(view)

    async def _sweep(self, view: WorkerView) -> None:
        self._at_us = self._clock.now_us()
        try:
            expired = await self._ledger.expire(
                view.worker_id,
                view.epoch,
                view.bin_us,
                self._at_us,
                kv_used_blocks=view.kv_used_blocks,
            )
        except Exception as error:
            _log_away(error)
            self._metrics.failed_open("ledger")
            return
        for lease in expired.orphaned:
            live = self._live.get(lease.request_id)
            if live is not None and live.lease is not None and live.lease.id == lease.id:
                live.ticket.lease_lost()

    async def close(self) -> None:
        """Wait for settlements under way. Nothing wakes the dispatcher afterwards."""
        self._closed = True
        if self._wake is not None:
            self._wake.cancel()
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- actions ----------------------------------------------------------------------------------

    def _receive(self, event: Event) -> None:
        self._at_us = self._clock.now_us()
        try:
            actions = self.scheduler.receive(event, self._at_us)
        except IllegalEvent:
            log.exception("the scheduler refused an event")
            return
        except Exception:
            log.exception("the scheduler failed on %s", type(event).__name__)
            self._metrics.failed_open("scheduler")
            self._release_lost()
            return
        self._perform(actions)

    def _release_lost(self) -> None:
        """The scheduler failed in mid-event and its actions are lost: whoever was dispatched or
        refused by one of them is let through here. What still is in its queue stays there."""
        for request_id, live in list(self._live.items()):
            if live.lease is not None or live.open or live.reserving or live.gone:
                continue
            if self.scheduler.state_of(request_id) is not RequestState.QUEUED:
                self._withdraw(request_id)
                self._fail_open(request_id, live, "scheduler")

    def _withdraw(self, request_id: str) -> None:
        """Take a request out of the scheduler, queued or reserving; it may not know it."""
        for event in (Gone(request_id), LeaseRefused(request_id, NOT_TAKEN)):
            try:
                actions = self.scheduler.receive(event, self._clock.now_us())
            except IllegalEvent:
                continue
            except Exception:
                log.exception("the scheduler failed to let go of a request")
                continue
            self._perform(actions)

    def _perform(self, actions: tuple[Action, ...]) -> None:
        """Perform in the order of decision: what an action leads to comes after those before it."""
        self._todo.extend(actions)
        if self._performing:
            return
        self._performing = True
        try:
            while self._todo:
                self._perform_next(self._todo.popleft())
        finally:
            self._performing = False

    def _perform_next(self, action: Action) -> None:
        try:
            self._perform_one(action)
        except Exception:
            # One ticket's fault must not keep the others from what was decided for them.
            log.exception("%s could not be performed", type(action).__name__)
            self._metrics.failed_open("dispatch")

    def _perform_one(self, action: Action) -> None:
        match action:
            case Reserve(request_id):
                live = self._live.get(request_id)
                if live is None or live.open:
                    self._withdraw(request_id)
                    return
                live.reserving = True
                self._spawn(self._reserve(action, live))
            case Shed(request_id, reason, retry_after_us, judged, queued_us):
                self._record(judged, reason, None)
                live = self._live.pop(request_id, None)
                if live is not None:
                    live.ticket.shed(reason, retry_after_us, queued_us)
            case Queued(request_id, position, reason):
                if (live := self._live.get(request_id)) is not None:
                    live.ticket.queued(position, reason)
            case Renew():
                self._spawn(self._renew(action))
            case Abandon(request_id, lease):
                self._live.pop(request_id, None)
                self._spawn(self._settle_lease(lease, UNUSED))
                self._receive(Settled(request_id, UNUSED))
            case LandForPressure(request_id):
                if (live := self._live.get(request_id)) is not None:
                    live.ticket.land_for_pressure()
            case WakeAt(at_us):
                self._wake_at(at_us)

    async def _reserve(self, action: Reserve, live: _Live) -> None:
        request_id = action.request_id
        try:
            # At the moment of its own decision: an action performed before this one may have
            # moved the scheduler on, and with it the headroom bins.
            decided_us = action.judged.decision.now_us
            answer = await self._ledger.reserve(action.lease_request, decided_us)
        except Exception as error:
            _log_away(error)
            live.reserving = False
            self._withdraw(request_id)
            if live.gone:
                self._live.pop(request_id, None)
            else:
                self._fail_open(request_id, live, "ledger")
            return
        live.reserving = False
        if isinstance(answer, Refused):
            self._receive(LeaseRefused(request_id, answer))
            if live.gone:
                self._live.pop(request_id, None)
            return
        live.lease, live.worker_id = answer, action.worker_id
        self._record(action.judged, action.reason, answer.ledger_version)
        self._receive(Reserved(request_id, answer))
        if not live.gone:
            admitted = Admitted(
                action.worker_id, action.reason, answer, action.grant, action.queued_us
            )
            self._admit(request_id, live, admitted)

    def _admit(self, request_id: str, live: _Live, admitted: Admitted) -> None:
        try:
            live.ticket.admitted(admitted)
        except Exception:
            log.exception("an admitted request could not be opened")
            self.settled(request_id, UNOPENED)
            live.ticket.failed()

    async def _renew(self, action: Renew) -> None:
        live = self._live.get(action.request_id)
        if live is None:
            return
        async with live.lock:
            lease = live.lease
            if lease is None or self._live.get(action.request_id) is not live:
                return
            try:
                answer = await self._ledger.renew(
                    lease.id, lease.fence, action.profile, action.ttl_us, self._at_us
                )
            except Exception as error:
                _log_away(error)
                self._metrics.failed_open("ledger")
                return
            if isinstance(answer, Refused):
                log.warning("renewal refused: %s", answer.reason.value)
                current = self._live.get(action.request_id) is live
                if answer.reason is RefusalReason.EXPIRED and current:
                    live.ticket.lease_lost()
            else:
                live.lease = answer

    async def _settle(self, live: _Live, settlement: Settlement) -> None:
        async with live.lock:
            lease = live.lease
            if lease is not None:
                await self._settle_lease(lease, settlement)

    async def _settle_lease(self, lease: Lease, settlement: Settlement) -> None:
        now_us = self._at_us
        try:
            answer = await self._ledger.settle(lease.id, lease.fence, settlement, now_us)
            if isinstance(answer, Refused) and answer.reason is RefusalReason.EXPIRED:
                # The upstream is closed by now, so the orphan's blocks are free again.
                await self._ledger.confirm_abort(lease.id, now_us)
            elif isinstance(answer, Refused):
                log.warning("settlement refused: %s", answer.reason.value)
        except Exception as error:
            _log_away(error)
            log.warning("lease %s ends by its TTL", lease.id)
            self._metrics.failed_open("ledger")

    def _fail_open(self, request_id: str, live: _Live, where: str) -> None:
        """Let a request through to the worker with the fewest of such requests."""
        self._metrics.failed_open(where)
        running: dict[str, int] = {}
        for other in self._live.values():
            if other.open and other.worker_id is not None:
                running[other.worker_id] = running.get(other.worker_id, 0) + 1
        model = live.arrived.demand.model
        able = [view.worker_id for view in self._views.values() if model in view.models]
        chosen = min(able, key=lambda name: (running.get(name, 0), name), default=None)
        if chosen is None or running.get(chosen, 0) >= FAIL_OPEN_CONCURRENCY:
            self._live.pop(request_id, None)
            live.ticket.shed(Reason.NO_HEADROOM if chosen else Reason.NO_WORKER, 1_000_000, 0)
            return
        self._live[request_id] = live
        live.open, live.worker_id = True, chosen
        self._admit(request_id, live, Admitted(chosen, Reason.FAIL_OPEN, None, None, 0))

    def _record(self, judged: Judged | None, reason: Reason, version: int | None) -> None:
        if judged is None:
            return
        try:
            self._keep(judged, reason, version)
        except Exception:
            # What explains a decision must not undo it.
            log.exception("a decision could not be recorded")
            self._metrics.failed_open("record")

    def _keep(self, judged: Judged, reason: Reason, version: int | None) -> None:
        record = record_of(
            judged.decision,
            demand=judged.demand,
            policy=judged.policy,
            policy_hash=self.policy_hash,
            code_version=self._code_version,
            forecast=judged.forecast,
            grant_inputs=judged.grant_inputs,
            grant=judged.grant,
            settings=self._settings,
            fleet=judged.fleet,
            preferred_worker=judged.preferred_worker,
            excluded=judged.excluded,
            ledger_version=version,
        )
        self._sink.decided(replace(record, reason=reason) if record.reason != reason else record)

    # -- plumbing ---------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._immediate:
            self._run_at_once(work)
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _run_at_once(self, work: Coroutine[Any, Any, None]) -> None:
        """A ledger in this process never waits, so its work is done here: what the scheduler has
        decided and what the ledger holds cannot drift apart in between."""
        try:
            work.send(None)
        except StopIteration:
            return
        work.close()
        raise RuntimeError("a ledger that was said to be immediate has waited")

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("dispatch task failed", exc_info=error)
            self._metrics.failed_open("dispatch")

    def _wake_at(self, at_us: int) -> None:
        if self._closed:
            return
        if self._wake is not None:
            self._wake.cancel()
        delay_s = max(0.0, (at_us - self._clock.now_us()) / 1e6)
        self._wake = asyncio.get_running_loop().call_later(delay_s, self.tick)


def _log_away(error: Exception) -> None:
    if isinstance(error, LedgerUnavailable):
        log.warning("ledger away: %s", error)
    else:
        log.error("the ledger failed", exc_info=error)
