"""Scheduler and ledger together under any sequence of events: nothing is lost, nobody jumps the
queue, and the pool is never overfilled by enforced requests."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from governor.adapters.ledger_memory import MemoryLedger
from governor.core.dispatch import (
    Abandon,
    Action,
    Arrived,
    Event,
    Gone,
    LeaseRefused,
    Queued,
    Renew,
    Renewed,
    Reserve,
    Reserved,
    Scraped,
    Settled,
    Shed,
    Tick,
)
from governor.core.headroom import EMPTY_PROFILE, SumsView, conditioned, peak
from governor.core.lease import Lease, Refused
from governor.core.lease import Settled as SettledLease
from governor.core.outcomes import Cause, Priority, Reason
from governor.core.policy import QueuePolicy, TenantPolicy
from governor.core.request import RequestState
from governor.core.scheduler import Scheduler
from tests.admission_builders import (
    SECOND,
    arrived,
    lease_request,
    running_profile,
    settlement,
    view,
)
from tests.scheduler_driver import SETTINGS

T = TypeVar("T")
WORKERS = ("w0", "w1")
POLICIES = {
    tenant: TenantPolicy(tenant=tenant, max_concurrent=6, queue=QueuePolicy(ttl_s=5.0))
    for tenant in ("a", "b")
}


def run(call: Coroutine[Any, Any, T]) -> T:
    """The result of a call that awaits nothing."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(call)
    finally:
        loop.close()


class SchedulerMachine(RuleBasedStateMachine):
    """Two workers of 100 blocks. A rival takes room behind the scheduler's back now and then, so
    that reservations are refused."""

    def __init__(self) -> None:
        super().__init__()
        self.now_us = 0
        self.scheduler = Scheduler(SETTINGS)
        self.ledger = MemoryLedger()
        self.arrived: dict[str, Arrived] = {}
        self.waiting: set[str] = set()
        self.leases: dict[str, Lease] = {}
        self.ended: dict[str, str] = {}
        self.rivals: list[Lease] = []
        self.loose = False
        self.priced = False
        for worker in WORKERS:
            run(self.ledger.expire(worker, "e1", 10_000, 0))
            self.send(Scraped(view(worker)))

    def send(self, event: Event) -> None:
        for action in self.scheduler.receive(event, self.now_us):
            self.perform(action)

    def perform(self, action: Action) -> None:
        match action:
            case Reserve():
                self.reserve(action)
            case Shed(request_id):
                self.end(request_id, "shed")
            case Queued(request_id):
                assert request_id in self.arrived
                self.waiting.add(request_id)
            case Renew(request_id, profile, ttl_us):
                lease = self.leases[request_id]
                renewed = run(
                    self.ledger.renew(lease.id, lease.fence, profile, ttl_us, self.now_us)
                )
                assert isinstance(renewed, Lease)
                self.leases[request_id] = renewed
                self.loose = True
            case Abandon(request_id):
                self.settle(request_id)

    def reserve(self, action: Reserve) -> None:
        assert action.request_id not in self.leases
        assert action.request_id not in self.ended
        self.keeps_order(action)
        self.waiting.discard(action.request_id)
        answer = run(self.ledger.reserve(action.lease_request, self.now_us))
        if isinstance(answer, Refused):
            self.send(LeaseRefused(action.request_id, answer))
            return
        self.loose = self.loose or action.lease_request.force
        self.leases[action.request_id] = answer
        self.send(Reserved(action.request_id, answer))

    def keeps_order(self, action: Reserve) -> None:
        """Of equal requests of one tenant, band and class the earlier starts first, unless it has
        just lost a race, or a price has made their grants differ."""
        mine = self.arrived[action.request_id]
        self.priced |= any(pool.price.value > 0 for pool in self.scheduler.pools.values())
        if action.reason is not Reason.FITS or mine.demand.deadline_us is not None or self.priced:
            return
        for name in self.waiting - {action.request_id}:
            other = self.arrived[name].demand
            alike = replace(
                other, decision_id=mine.demand.decision_id, arrived_us=mine.demand.arrived_us
            )
            request = self.scheduler._requests[name]
            # One whose own reservation is still to be performed here waits no longer.
            waits = request.state is RequestState.QUEUED and not request.not_before_us
            if waits and alike == mine.demand:
                assert int(name[1:]) > int(action.request_id[1:])

    def end(self, request_id: str, how: str) -> None:
        assert request_id not in self.ended
        self.ended[request_id] = how
        self.waiting.discard(request_id)

    def settle(self, request_id: str) -> None:
        lease = self.leases.pop(request_id)
        settled = run(self.ledger.settle(lease.id, lease.fence, settlement(), self.now_us))
        assert isinstance(settled, SettledLease)
        self.end(request_id, "settled")
        self.send(Settled(request_id, settlement(cause=Cause.COMPLETED)))

    @rule(
        count=st.integers(1, 5),
        tenant=st.sampled_from(sorted(POLICIES)),
        priority=st.sampled_from([Priority.HIGH, Priority.NORMAL, Priority.NORMAL, Priority.BATCH]),
        prompt_tokens=st.sampled_from([10, 600, 600, 1_200, 9_999]),
        most=st.sampled_from([8, 100, 200]),
        enforce=st.sampled_from([True, True, True, False]),
        deadline_us=st.sampled_from([None, None, SECOND, 4 * SECOND]),
    )
    def arrive(
        self,
        count: int,
        tenant: str,
        priority: Priority,
        prompt_tokens: int,
        most: int,
        enforce: bool,
        deadline_us: int | None,
    ) -> None:
        for _ in range(count):
            name = f"r{len(self.arrived)}"
            self.arrived[name] = arrived(
                name,
                policy=POLICIES[tenant],
                enforce=enforce,
                tenant=tenant,
                priority=priority,
                prompt_tokens=prompt_tokens,
                max_completion_tokens=most,
                arrived_us=self.now_us,
                deadline_us=None if deadline_us is None else self.now_us + deadline_us,
            )
            self.send(self.arrived[name])

    @rule(pick=st.integers(0, 100))
    def finish_one(self, pick: int) -> None:
        if self.leases:
            self.settle(sorted(self.leases)[pick % len(self.leases)])

    @rule(pick=st.integers(0, 100))
    def leave_the_queue(self, pick: int) -> None:
        if self.waiting:
            name = sorted(self.waiting)[pick % len(self.waiting)]
            self.end(name, "gone")
            self.send(Gone(name))

    @rule(pick=st.integers(0, 100), tokens=st.integers(0, 200), over=st.booleans())
    def progress(self, pick: int, tokens: int, over: bool) -> None:
        if self.leases:
            name = sorted(self.leases)[pick % len(self.leases)]
            self.send(Renewed(name, tokens, thinking_over=over))

    @rule(passed_us=st.integers(0, 2 * SECOND))
    def time_passes(self, passed_us: int) -> None:
        self.now_us += passed_us
        self.send(Tick())

    @rule(worker=st.sampled_from(WORKERS), used=st.none() | st.integers(0, 120))
    def scrape(self, worker: str, used: int | None) -> None:
        self.send(Scraped(view(worker, scraped_us=self.now_us, kv_used_blocks=used)))

    @rule(worker=st.sampled_from(WORKERS))
    def a_rival_takes_room(self, worker: str) -> None:
        rival = lease_request(
            f"rival{len(self.rivals)}",
            worker_id=worker,
            profile=running_profile(500, self.now_us, prompt_tokens=300),
            ttl_us=1_000 * SECOND,
        )
        answer = run(self.ledger.reserve(rival, self.now_us))
        if isinstance(answer, Lease):
            self.rivals.append(answer)

    @invariant()
    def every_request_is_in_exactly_one_place(self) -> None:
        open_names = set(self.arrived) - set(self.ended)
        assert open_names == self.waiting | set(self.leases)
        assert not self.waiting & set(self.leases)
        assert self.scheduler.waiting == len(self.waiting)
        assert self.scheduler.in_flight == len(self.leases)

    @invariant()
    def the_scheduler_and_the_ledger_hold_the_same(self) -> None:
        counted = {
            load.view.worker_id: load.sums for load in self.scheduler.fleet(self.now_us).workers
        }
        for worker in WORKERS:
            in_ledger = run(self.ledger.sums(worker, self.now_us))
            assert isinstance(in_ledger, SumsView)
            rivals = sum(lease.worker_id == worker for lease in self.rivals)
            assert in_ledger.count == counted[worker].count + rivals
            if not rivals:
                assert conditioned(in_ledger) == counted[worker]

    @invariant()
    def enforced_requests_alone_never_overfill_a_pool(self) -> None:
        if self.loose:
            return
        for load in self.scheduler.fleet(self.now_us).workers:
            if load.in_flight > 1:
                own = EMPTY_PROFILE.starting(load.sums.base_bin)
                assert peak(load.sums, own, 0.0, 0.0) <= 100_000

    def teardown(self) -> None:
        """When everything has ended and every wait has run out nothing is left."""
        while self.leases:
            self.settle(min(self.leases))
            self.now_us += 6 * SECOND
            self.send(Tick())
        self.now_us += 6 * SECOND
        self.send(Tick())
        while self.leases:
            self.settle(min(self.leases))
        assert set(self.ended) == set(self.arrived)
        assert self.scheduler.waiting == self.scheduler.in_flight == 0
        assert {lease.id for lease in self.ledger.leases()} == {rival.id for rival in self.rivals}
        for load in self.scheduler.fleet(self.now_us).workers:
            assert load.sums.count == 0
            assert not any(load.sums.mean)


SchedulerMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
TestScheduler = SchedulerMachine.TestCase
