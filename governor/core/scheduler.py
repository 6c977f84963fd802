"""Scheduler: which waiting request starts where and when. Owns queue, order, fairness, quotas and
price; performs nothing.

Sheds at arrival what waiting cannot mend, holds the rest in the gateway, dispatches in order as
headroom appears, and lands running thinkers before it lets anybody's wait run out.
"""

from collections.abc import Mapping
from dataclasses import replace
from heapq import heappop, heappush
from itertools import islice
from types import MappingProxyType

from governor.core.accounts import TenantAccounts
from governor.core.admission import Decision
from governor.core.dispatch import (
    Abandon,
    Action,
    Arrived,
    Draining,
    Event,
    Gone,
    LandForPressure,
    LeaseRefused,
    PolicyChanged,
    Queued,
    Renew,
    Renewed,
    Reserve,
    Reserved,
    SchedulerSettings,
    Scraped,
    Settled,
    Shed,
    Tick,
    WakeAt,
    WorkerRemoved,
)
from governor.core.errors import IllegalEvent
from governor.core.fairness import FairQueue, Waiting
from governor.core.fleet import FleetView
from governor.core.judge import fleet_of, judge, retry_after_us
from governor.core.lease import LeaseRequest
from governor.core.outcomes import Outcome, Reason
from governor.core.placement import Candidate
from governor.core.policy import TenantPolicy
from governor.core.pool import Hold, Pool
from governor.core.relief import least_valuable, pressure_on
from governor.core.renewals import Renewals, repaced
from governor.core.request import GovernedRequest, RequestState
from governor.core.units import us_from_s

# What may happen to a request in each state. Arrived starts one; Shed, Settled and Gone end it.
TRANSITIONS: Mapping[RequestState, Mapping[type, RequestState | None]] = MappingProxyType(
    {
        RequestState.QUEUED: {Reserve: RequestState.RESERVING, Shed: None, Gone: None},
        RequestState.RESERVING: {
            Reserved: RequestState.RUNNING,
            LeaseRefused: RequestState.QUEUED,
            Gone: RequestState.RESERVING,
        },
        RequestState.RUNNING: {
            Renewed: RequestState.RUNNING,
            Settled: None,
            Gone: RequestState.RUNNING,
        },
    }
)


class Scheduler:
    """Synchronous state machine: `receive(event, now_us) -> actions`.

    Every `Arrived` ends in exactly one of `Shed`, `Settled` (after a `Reserve`) or `Gone`. An event
    that the table does not allow raises `IllegalEvent` and changes nothing; `Gone` and `Renewed`
    may come late, for a request that has ended, and are then ignored.
    """

    def __init__(self, settings: SchedulerSettings | None = None) -> None:
        self._settings = settings or SchedulerSettings()
        self._requests: dict[str, GovernedRequest] = {}
        self._queue = FairQueue()
        self._pools: dict[str, Pool] = {}
        self._accounts = TenantAccounts()
        self._expiries: list[tuple[int, str]] = []
        self._renewals = Renewals(self._settings.lease_ttl_us // 2)
        self._seq = 0
        self._version = 0
        self._passed: list[GovernedRequest] = []
        self._unannounced: list[GovernedRequest] = []

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._queue)

    @property
    def in_flight(self) -> int:
        """How many requests hold a lease, or are about to."""
        return self._accounts.in_flight

    def state_of(self, request_id: str) -> RequestState | None:
        """Where a request is; None for one that is not known (ended, or never arrived)."""
        request = self._requests.get(request_id)
        return None if request is None else request.state

    @property
    def pools(self) -> Mapping[str, Pool]:
        """The pools by worker, for metrics. Not to be changed."""
        return MappingProxyType(self._pools)

    def fleet(self, now_us: int) -> FleetView:
        """The fleet at `now_us`."""
        return fleet_of(self._pools, now_us, self._settings.admission)

    def receive(self, event: Event, now_us: int) -> tuple[Action, ...]:
        """Apply `event`, then dispatch what fits. Raises `IllegalEvent` for one that the table does
        not allow, ValueError for an id that is taken."""
        actions: list[Action] = []
        self._version += 1
        match event:
            case Arrived():
                self._arrived(event, now_us, actions)
            case Scraped(view):
                pool = self._pools.get(view.worker_id)
                if pool is None:
                    settings = self._settings
                    self._pools[view.worker_id] = Pool(view, settings.overcommit, settings.price)
                else:
                    pool.scraped(view, now_us)
                    for request in repaced(pool, self._requests):
                        self._renew(request, now_us, actions)
            case WorkerRemoved(worker_id):
                self._pools.pop(worker_id, None)
            case Draining(worker_id, draining):
                if (pool := self._pools.get(worker_id)) is not None:
                    pool.view = replace(pool.view, draining=draining)
            case Reserved():
                self._reserved(event, now_us, actions)
            case LeaseRefused():
                self._refused(event, now_us, actions)
            case Renewed():
                self._renewed(event, now_us, actions)
            case Settled():
                self._settled(event, now_us)
            case Gone(request_id):
                self._gone(request_id)
            case PolicyChanged(policies):
                self._policy_changed(policies, now_us)
            case Tick():
                pass
        self._expire(now_us, actions)
        for request in self._renewals.late(self._requests, now_us):
            self._renew(request, now_us, actions)
        self._dispatch(now_us, actions)
        self._announce(now_us, actions)
        self._buy_headroom(now_us, actions)
        wake_us = self._next_wake(now_us)
        if wake_us is not None:
            actions.append(WakeAt(wake_us))
        return tuple(actions)

    def _expect(self, request_id: str, event: type) -> GovernedRequest:
        request = self._requests.get(request_id)
        if request is None:
            raise IllegalEvent(f"{event.__name__} for {request_id}, which is not known")
        if event not in TRANSITIONS[request.state]:
            raise IllegalEvent(f"{event.__name__} for {request_id} while {request.state.value}")
        return request

    def _arrived(self, event: Arrived, now_us: int, actions: list[Action]) -> None:
        if event.request_id in self._requests:
            raise ValueError(f"{event.request_id} is known already")
        self._seq += 1
        request = GovernedRequest(event, now_us, self._seq)
        # Judged before it is taken in: a fault in a forecast or grant leaves nothing behind.
        decision = self._judge(request, now_us, frozenset())
        if event.enforce and decision.outcome is Outcome.SHED:
            self._shed(request, decision.reason, now_us, actions)
            return
        self._requests[event.request_id] = request
        if event.enforce:
            self._enqueue(request)
        else:
            self._open(request, now_us, actions)

    def _enqueue(self, request: GovernedRequest) -> None:
        arrived, demand = request.arrived, request.arrived.demand
        ttl_us = us_from_s(arrived.policy.queue.ttl_s)
        latest_us: int | None = None
        expiry_us = request.since_us + ttl_us
        if demand.deadline_us is not None:
            judged, footprint = request.judged, request.footprint
            assert judged is not None
            assert footprint is not None
            paces = [c.load.view.us_per_token for c in judged.decision.candidates]
            latest_us = demand.deadline_us - footprint.median_tokens * min(paces, default=0)
            expiry_us = min(expiry_us, demand.deadline_us)
        area = request.footprint.area if request.footprint else 1
        waiting = Waiting(
            request_id=arrived.request_id,
            tenant=demand.tenant,
            band=demand.priority,
            area=area,
            arrived_us=request.since_us,
            seq=request.seq,
            longest_wait_us=ttl_us,
            latest_start_us=latest_us,
        )
        self._queue.add(waiting)
        heappush(self._expiries, (expiry_us, arrived.request_id))
        self._unannounced.append(request)

    def _judge(self, request: GovernedRequest, now_us: int, excluded: frozenset[str]) -> Decision:
        """What admission says of a request; asked again only where something has changed since."""
        looked = (self._version, now_us, excluded)
        if request.judged is None or request.looked != looked:
            request.looked = looked
            judge(request, self._pools, self._accounts, self._settings.admission, now_us, excluded)
        assert request.judged is not None
        return request.judged.decision

    def _dispatch(self, now_us: int, actions: list[Action]) -> None:
        """One pass over the queue in its order. A request that does not fit does not block those
        that do, until it has been overtaken too often."""
        blocked_tenants: set[str] = set()
        kept: frozenset[str] = frozenset()
        overtaken: list[GovernedRequest] = []
        self._passed.clear()
        attempts = 0
        due = islice(self._queue.order(blocked_tenants), self._settings.looks_per_pass)
        for waiting in due:
            request = self._requests[waiting.request_id]
            serving = self._serving(request)
            if attempts >= self._settings.attempts_per_pass:
                break
            if serving and serving <= kept:
                request.why = Reason.BEHIND_OTHERS
            elif any(request.needs_as_much_as(other) for other in self._passed):
                request.why = Reason.NO_HEADROOM
                overtaken.append(request)
            elif now_us < request.not_before_us:
                # It has just lost a race: nobody passes it on its workers meanwhile.
                kept |= serving
            else:
                attempts += 1
                decision = self._judge(request, now_us, kept)
                if decision.outcome is Outcome.ADMIT:
                    self._reserve(request, decision.chosen, now_us, actions, Reason.FITS)
                    for other in overtaken:
                        other.bypassed += decision.worker_id in self._serving(other)
                elif decision.outcome is Outcome.SHED:
                    self._shed(request, decision.reason, now_us, actions)
                elif decision.reason.is_tenants_own:
                    blocked_tenants.add(waiting.tenant)
                elif decision.reason is not Reason.LONG_TASK_SHARE:
                    self._passed.append(request)
                    overtaken.append(request)
            if request.bypassed >= self._settings.max_bypass and request in overtaken[-1:]:
                kept |= serving

    def _serving(self, request: GovernedRequest) -> frozenset[str]:
        model = request.arrived.demand.model
        return frozenset(name for name, pool in self._pools.items() if model in pool.view.models)

    def _open(self, request: GovernedRequest, now_us: int, actions: list[Action]) -> None:
        """Dispatch at once to the best worker whatever admission says; what it says is kept."""
        decision = self._judge(request, now_us, request.refused_by)
        usable = [c for c in decision.candidates if c.reason is not Reason.DRAINING]
        best = min(
            usable or decision.candidates,
            key=lambda c: (not c.fits, c.share, c.load.view.worker_id),
            default=None,
        )
        if best is None:
            reason = Reason.LOST_RACE if request.refused_by else Reason.NO_WORKER
            self._shed(request, reason, now_us, actions)
        else:
            self._reserve(request, best, now_us, actions, request.arrived.open_reason)

    def _reserve(
        self,
        request: GovernedRequest,
        chosen: Candidate | None,
        now_us: int,
        actions: list[Action],
        reason: Reason,
    ) -> None:
        judged, footprint = request.judged, request.footprint
        assert chosen is not None
        assert judged is not None
        assert footprint is not None
        arrived, demand = request.arrived, request.arrived.demand
        load = chosen.load
        profile = footprint.profile_on(load.view, now_us)
        self._queue.remove(arrived.request_id)
        self._queue.charge(demand.tenant, footprint.area, arrived.policy.weight)
        self._accounts.begin(demand.tenant, footprint.area, now_us)
        self._pools[load.view.worker_id].take(
            Hold(
                request_id=arrived.request_id,
                profile=profile,
                long=chosen.long,
                prompt_tokens=demand.prompt_tokens,
                completions=demand.n,
                most_tokens=footprint.held.limit_tokens,
                generated_tokens=0,
                since_us=now_us,
            )
        )
        request.state = TRANSITIONS[request.state][Reserve] or request.state
        request.worker_id = load.view.worker_id
        request.us_per_token = load.view.us_per_token
        request.charged_area = footprint.area
        self._version += 1
        lease_request = LeaseRequest(
            request_id=arrived.request_id,
            attempt=arrived.attempt,
            worker_id=load.view.worker_id,
            worker_epoch=load.view.epoch,
            profile=profile,
            area_charged=footprint.area,
            forecast_version=arrived.forecast.artefact,
            ttl_us=self._settings.lease_ttl_us,
            limit_milliblocks=chosen.limit_milliblocks,
            z=load.z,
            sigma_c=load.sigma_c,
            force=not arrived.enforce,
        )
        actions.append(
            Reserve(
                request_id=arrived.request_id,
                worker_id=load.view.worker_id,
                lease_request=lease_request,
                grant=judged.grant,
                reason=reason,
                judged=judged,
                queued_us=now_us - request.since_us,
            )
        )

    def _shed(
        self, request: GovernedRequest, reason: Reason, now_us: int, actions: list[Action]
    ) -> None:
        request_id = request.arrived.request_id
        self._queue.remove(request_id)
        self._requests.pop(request_id, None)
        queued_us = now_us - request.since_us
        retry_us = retry_after_us(request.judged, self._queue.area, self._settings.admission)
        actions.append(Shed(request_id, reason, retry_us, request.judged, queued_us))

    def _reserved(self, event: Reserved, now_us: int, actions: list[Action]) -> None:
        request = self._expect(event.request_id, Reserved)
        request.state = RequestState.RUNNING
        request.renewed_us = now_us
        self._renewals.watch(request, now_us)
        if request.gone:
            actions.append(Abandon(event.request_id, event.lease))

    def _refused(self, event: LeaseRefused, now_us: int, actions: list[Action]) -> None:
        """A lost race goes back to decide once, on the other workers; then it waits in place."""
        request = self._expect(event.request_id, LeaseRefused)
        arrived, worker_id = request.arrived, request.worker_id
        assert worker_id is not None
        self._release(request, -request.charged_area, now_us)
        request.state, request.worker_id, request.charged_area = RequestState.QUEUED, None, 0
        if request.gone:
            del self._requests[event.request_id]
            return
        again = not request.refused_by
        request.refused_by |= {worker_id}
        if not arrived.enforce:
            self._open(request, now_us, actions)
            return
        if again:
            decision = self._judge(request, now_us, request.refused_by)
            if decision.outcome is Outcome.ADMIT:
                self._reserve(request, decision.chosen, now_us, actions, Reason.FITS)
                return
        request.refused_by = frozenset()
        request.not_before_us = now_us + self._settings.poll_us
        self._enqueue(request)
        request.why = Reason.LOST_RACE

    def _release(self, request: GovernedRequest, area_more: int, now_us: int) -> None:
        """Give back what a dispatched request holds; `area_more` trues up what it was charged."""
        arrived = request.arrived
        pool = self._pools.get(request.worker_id or "")
        if pool is not None:
            pool.release(arrived.request_id)
        self._accounts.end(arrived.demand.tenant, area_more, now_us)
        self._queue.charge(arrived.demand.tenant, area_more, arrived.policy.weight)
        self._version += 1

    def _renewed(self, event: Renewed, now_us: int, actions: list[Action]) -> None:
        if event.request_id not in self._requests:
            return
        request = self._expect(event.request_id, Renewed)
        request.progress(event.generated_tokens, thinking_over=event.thinking_over)
        self._renew(request, now_us, actions)

    def _renew(self, request: GovernedRequest, now_us: int, actions: list[Action]) -> None:
        """Swap the profile for one conditional on the progress, and true up what it was charged."""
        request_id = request.arrived.request_id
        pool = self._pools.get(request.worker_id or "")
        if pool is None:
            return
        profile = request.profile_on(pool.view, now_us)
        pool.swap(request_id, profile, request.generated_tokens, now_us)
        area = request.expected_area()
        demand = request.arrived.demand
        self._queue.charge(
            demand.tenant, area - request.charged_area, request.arrived.policy.weight
        )
        self._accounts.spend(demand.tenant, area - request.charged_area, now_us)
        request.charged_area = area
        request.renewed_us = now_us
        actions.append(Renew(request_id, profile, self._settings.lease_ttl_us))

    def _settled(self, event: Settled, now_us: int) -> None:
        request = self._expect(event.request_id, Settled)
        pool = self._pools.get(request.worker_id or "")
        if pool is not None and request.landed_us is not None:
            pool.price.landed(now_us - request.landed_us)
        self._release(request, event.settlement.area - request.charged_area, now_us)
        del self._requests[event.request_id]

    def _gone(self, request_id: str) -> None:
        request = self._requests.get(request_id)
        if request is None:
            return
        if request.state is RequestState.QUEUED:
            self._queue.remove(request_id)
            del self._requests[request_id]
        request.gone = True

    def _policy_changed(self, policies: Mapping[str, TenantPolicy], now_us: int) -> None:
        for tenant, policy in policies.items():
            self._accounts.resize(tenant, policy, now_us)
        for request in self._requests.values():
            policy_ = policies.get(request.arrived.demand.tenant)
            if policy_ is not None and request.state is RequestState.QUEUED:
                request.arrived = replace(request.arrived, policy=policy_)
                request.forget_fit()

    def _expire(self, now_us: int, actions: list[Action]) -> None:
        while self._expiries and self._expiries[0][0] <= now_us:
            _, request_id = heappop(self._expiries)
            request = self._requests.get(request_id)
            if request is None or request.state is not RequestState.QUEUED:
                continue
            deadline_us = request.arrived.demand.deadline_us
            reason = request.why if request.why.is_tenants_own else Reason.QUEUE_TTL
            if deadline_us is not None and deadline_us <= now_us:
                reason = Reason.DEADLINE_UNREACHABLE
            self._shed(request, reason, now_us, actions)

    def _announce(self, now_us: int, actions: list[Action]) -> None:
        """Tell those who have come to wait; a tenant's queue has its bound."""
        for request in self._unannounced:
            if request.state is not RequestState.QUEUED or request.gone:
                continue
            request_id, demand = request.arrived.request_id, request.arrived.demand
            if request_id not in self._requests:
                continue
            if self._queue.waiting_of(demand.tenant) > request.arrived.policy.queue.max_queued:
                self._shed(request, Reason.QUEUE_FULL, now_us, actions)
            else:
                actions.append(Queued(request_id, self._queue.position(request_id), request.why))
        self._unannounced.clear()

    def _buy_headroom(self, now_us: int, actions: list[Action]) -> None:
        """Move each pool's price, and land the thinker of least value where it is high enough."""
        for name, pool in self._pools.items():
            pressure = pressure_on(name, self._passed, self._settings.price, now_us)
            if not (pool.price.update(pressure, now_us) and pool.price.lands):
                continue
            request = least_valuable(pool, self._requests)
            if request is not None:
                request.landed_us = now_us
                actions.append(LandForPressure(request.arrived.request_id))
                # What the landing frees counts from here on, at the time for which it is predicted.
                self._renew(request, now_us, actions)

    def _next_wake(self, now_us: int) -> int | None:
        times = []
        if self._queue:
            times.append(now_us + self._settings.poll_us)
            times.append(max(now_us + 1, self._expiries[0][0]))
        if (due_us := self._renewals.next_us) is not None:
            times.append(max(now_us + 1, due_us))
        return min(times, default=None)
