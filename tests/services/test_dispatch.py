"""Dispatcher with a real scheduler and ledger: every request admitted or refused once, every lease
settled once, whatever fails in between."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from governor.adapters.ledger_memory import MemoryLedger
from governor.core.dispatch import Action, Arrived, Event, Gone, Tick
from governor.core.errors import LedgerUnavailable
from governor.core.outcomes import Cause, Outcome, Reason
from governor.core.policy import QueuePolicy, TenantPolicy
from governor.core.record import disagreements, replay
from governor.core.scheduler import Scheduler
from governor.services.dispatch import FAIL_OPEN_CONCURRENCY, Dispatcher
from governor.services.ticket import Admitted
from tests.admission_builders import (
    SECOND,
    arrived,
    lease_request,
    running_profile,
    settlement,
    view,
)
from tests.fake_worker import until
from tests.fakes import FakeClock, FakeCounts, FakeSink, FakeTicket, LedgerProxy
from tests.scheduler_driver import SETTINGS

AWAY = LedgerUnavailable("no answer")
TTL_US = SETTINGS.lease_ttl_us
# Takes 80 of the 100 blocks by its prompt alone, so that nothing else fits.
HUGE = 80 * 16


@dataclass
class Rig:
    """A dispatcher with what stands around it."""

    dispatcher: Dispatcher
    ledger: LedgerProxy
    store: MemoryLedger
    clock: FakeClock
    counts: FakeCounts
    sink: FakeSink

    def arrive(self, name: str, ticket: FakeTicket | None = None, **changes: Any) -> FakeTicket:
        ticket = ticket or FakeTicket()
        changes.setdefault("arrived_us", self.clock.at_us)
        self.dispatcher.arrive(ticket, arrived(name, **changes))
        return ticket

    async def admit(self, name: str, **changes: Any) -> FakeTicket:
        ticket = self.arrive(name, **changes)
        await until(lambda: ticket.admissions, f"{name} admitted")
        return ticket

    def settle(self, name: str, cause: Cause = Cause.COMPLETED) -> None:
        self.dispatcher.settled(name, settlement(cause=cause))

    @property
    def quiet(self) -> bool:
        return not self.dispatcher._tasks

    async def at_rest(self) -> None:
        """Until nothing is under way; then nobody may hold anything."""
        await until(lambda: self.quiet, "no task of the dispatcher runs")
        scheduler = self.dispatcher.scheduler
        assert (scheduler.waiting, scheduler.in_flight) == (0, 0)
        assert all(not pool.holds for pool in scheduler.pools.values())
        assert self.dispatcher.open_leases == 0
        assert self.dispatcher._live == {}


@asynccontextmanager
async def rig(
    *workers: str, scheduler: Scheduler | None = None, clock: FakeClock | None = None
) -> AsyncIterator[Rig]:
    store = MemoryLedger()
    ledger, clock, counts, sink = LedgerProxy(store), clock or FakeClock(), FakeCounts(), FakeSink()
    scheduler = scheduler or Scheduler(SETTINGS)
    dispatcher = Dispatcher(scheduler, ledger, clock, counts, sink, SETTINGS.admission, "test")
    for worker in workers or ("w0",):
        await dispatcher.worker_seen(view(worker, max_model_len=None))
    try:
        yield Rig(dispatcher, ledger, store, clock, counts, sink)
    finally:
        await asyncio.wait_for(dispatcher.close(), 5)


async def test_a_request_is_admitted_with_a_lease_and_settled_once() -> None:
    async with rig() as r:
        ticket = await r.admit("a")
        (admitted,) = ticket.admissions
        assert admitted.worker_id == "w0"
        assert admitted.reason is Reason.FITS
        assert admitted.grant is not None
        assert [lease.request_id for lease in r.store.leases()] == ["a"]
        assert r.dispatcher.open_leases == 1
        r.settle("a")
        r.settle("a")
        await r.at_rest()
        assert r.ledger.settled == [ticket.lease.id]
        assert r.ledger.calls.count("settle") == 1
        assert r.store.leases() == ()
        assert r.counts.opened == []


async def test_who_waits_is_admitted_when_the_blocks_are_given_back() -> None:
    async with rig() as r:
        await r.admit("full", prompt_tokens=HUGE)
        waits = r.arrive("b", prompt_tokens=HUGE)
        assert waits.told == [("queued", 1, Reason.NO_HEADROOM)]
        r.settle("full")
        await until(lambda: waits.admissions)
        r.settle("b")
        await r.at_rest()


async def test_a_client_that_leaves_the_queue_is_forgotten() -> None:
    async with rig() as r:
        await r.admit("full", prompt_tokens=HUGE)
        waits = r.arrive("b", prompt_tokens=HUGE)
        r.dispatcher.gone("b")
        r.dispatcher.gone("b")
        r.settle("full")
        await r.at_rest()
        assert waits.admissions == []
        assert r.ledger.calls.count("reserve") == 1


@pytest.mark.parametrize("refused", [False, True])
async def test_a_client_that_leaves_while_its_lease_is_reserved_leaves_nothing(
    refused: bool,
) -> None:
    async with rig() as r:
        gate = r.ledger.gates["reserve"] = asyncio.Event()
        ticket = r.arrive("a")
        await until(lambda: "reserve" in r.ledger.calls)
        r.dispatcher.gone("a")
        if refused:
            r.ledger.faults["reserve"] = AWAY
        gate.set()
        await r.at_rest()
        assert ticket.admissions == []
        assert r.store.leases() == ()
        assert len(r.ledger.settled) == (0 if refused else 1)


async def test_of_a_running_request_the_relay_takes_care() -> None:
    async with rig() as r:
        await r.admit("a")
        r.dispatcher.gone("a")
        assert len(r.store.leases()) == 1
        r.settle("a", Cause.CLIENT_GONE)
        await r.at_rest()
        assert r.store.leases() == ()


async def test_a_lost_race_is_decided_again_and_ends_in_one_admission() -> None:
    async with rig("w0", "w1") as r:
        await r.admit("one")
        # The other worker's ledger knows of more than the scheduler does.
        first = await r.admit("two")
        taken = first.admissions[0].worker_id
        r.settle("two")
        await until(lambda: r.quiet)
        big = running_profile(tokens=640, prompt_tokens=16 * 90)
        await r.store.reserve(
            lease_request("foreign", worker_id=taken, profile=big, ttl_us=TTL_US, force=True), 0
        )
        ticket = await r.admit("three")
        assert len(ticket.admissions) == 1
        assert ticket.admissions[0].worker_id != taken
        for name in ("one", "three"):
            r.settle(name)
        await r.at_rest()


async def test_an_expired_lease_is_told_and_never_settled() -> None:
    async with rig() as r:
        ticket = await r.admit("a")
        r.clock.at_us += TTL_US + 1
        await r.dispatcher.expire()
        assert ticket.told[-1] == "lease_lost"
        assert len(r.store.leases()) == 1, "its blocks stay counted until the abort is confirmed"
        r.settle("a", Cause.UPSTREAM_ERROR)
        await r.at_rest()
        assert r.ledger.settled == []
        assert r.ledger.calls[-1] == "confirm_abort"
        assert r.store.leases() == ()


async def test_a_renewal_that_comes_too_late_is_told_as_a_lost_lease() -> None:
    async with rig() as r:
        ticket = await r.admit("a")
        r.clock.at_us += TTL_US + 1
        r.dispatcher.renewed("a", 70, thinking_over=False)
        await until(lambda: ticket.told[-1] == "lease_lost")
        r.settle("a")
        await r.at_rest()


async def test_a_renewal_under_way_and_the_settlement_do_not_cross() -> None:
    async with rig() as r:
        await r.admit("a")
        gate = r.ledger.gates["renew"] = asyncio.Event()
        r.dispatcher.renewed("a", 70, thinking_over=False)
        await until(lambda: "renew" in r.ledger.calls)
        r.settle("a")
        gate.set()
        await r.at_rest()
        assert len(r.ledger.settled) == 1
        assert r.store.leases() == ()


async def test_a_renewal_that_comes_after_the_settlement_is_dropped() -> None:
    async with rig() as r:
        await r.admit("a")
        r.dispatcher.renewed("a", 70, thinking_over=False)
        r.settle("a")
        r.dispatcher.renewed("a", 90, thinking_over=False)
        await r.at_rest()
        assert len(r.ledger.settled) == 1


@pytest.mark.parametrize("fault", [AWAY, RuntimeError("a bug in the store")])
@pytest.mark.parametrize("workers", [1, 2])
async def test_without_a_ledger_requests_go_through_up_to_a_bound(
    fault: Exception, workers: int
) -> None:
    async with rig(*(f"w{n}" for n in range(workers))) as r:
        r.ledger.faults["reserve"] = fault
        places = FAIL_OPEN_CONCURRENCY * workers
        tickets = [r.arrive(f"r{n}", prompt_tokens=16) for n in range(places + 2)]
        await until(lambda: all(ticket.told for ticket in tickets) and r.quiet)
        let_through = [ticket for ticket in tickets if ticket.admissions]
        assert len(let_through) == places
        for ticket in let_through:
            (admitted,) = ticket.admissions
            assert (admitted.reason, admitted.lease, admitted.grant) == (
                Reason.FAIL_OPEN,
                None,
                None,
            )
        by_worker = [ticket.admissions[0].worker_id for ticket in let_through]
        assert {by_worker.count(name) for name in by_worker} == {FAIL_OPEN_CONCURRENCY}
        refused = [ticket for ticket in tickets if not ticket.admissions]
        assert all(ticket.told[-1] == ("shed", Reason.NO_HEADROOM) for ticket in refused)
        assert r.counts.opened == ["ledger"] * (places + 2)
        for number in range(places + 2):
            r.settle(f"r{number}")
        await r.at_rest()


async def test_an_ended_ungoverned_request_makes_room_for_another() -> None:
    async with rig() as r:
        r.ledger.faults["reserve"] = AWAY
        for number in range(FAIL_OPEN_CONCURRENCY):
            await r.admit(f"r{number}", prompt_tokens=16)
        r.settle("r0")
        ticket = await r.admit("next", prompt_tokens=16)
        assert ticket.admissions[0].reason is Reason.FAIL_OPEN
        for name in ("next", *(f"r{n}" for n in range(1, FAIL_OPEN_CONCURRENCY))):
            r.settle(name)
        await r.at_rest()


async def test_a_ledger_that_is_away_at_the_end_is_counted_and_holds_nobody_up() -> None:
    async with rig() as r:
        await r.admit("a")
        r.ledger.faults["settle"] = AWAY
        r.settle("a")
        await r.at_rest()
        assert r.counts.opened == ["ledger"]
        assert len(r.store.leases()) == 1, "it ends by its TTL"


@pytest.mark.parametrize("call", ["renew", "expire"])
async def test_a_ledger_that_is_away_in_between_is_counted(call: str) -> None:
    async with rig() as r:
        ticket = await r.admit("a")
        r.ledger.faults[call] = AWAY
        r.dispatcher.renewed("a", 70, thinking_over=False)
        await r.dispatcher.expire()
        await until(lambda: r.quiet)
        assert r.counts.opened == ["ledger"]
        assert "lease_lost" not in ticket.told
        r.settle("a")
        await r.at_rest()


class BrokenScheduler(Scheduler):
    """Fails on events of one kind, before or after it has taken them in."""

    def __init__(self, kind: type, *, after: bool) -> None:
        super().__init__(SETTINGS)
        self.kind, self.after, self.broken = kind, after, True

    def receive(self, event: Event, now_us: int) -> tuple[Action, ...]:
        fails = self.broken and isinstance(event, self.kind)
        if fails and not self.after:
            raise ZeroDivisionError("a fault in a decision")
        actions = super().receive(event, now_us)
        if fails:
            raise ZeroDivisionError("a fault after a decision")
        return actions


@pytest.mark.parametrize("after", [False, True])
async def test_a_decision_that_fails_lets_the_request_through_once(after: bool) -> None:
    async with rig(scheduler=BrokenScheduler(Arrived, after=after)) as r:
        ticket = await r.admit("a")
        r.dispatcher.tick()
        await until(lambda: r.quiet)
        assert [a.reason for a in ticket.admissions] == [Reason.FAIL_OPEN]
        assert r.counts.opened[0] == "admission"
        r.settle("a")
        await r.at_rest()


async def test_actions_that_a_failing_scheduler_lost_are_made_good() -> None:
    """The wait of one request ends in the failing event; the other one still waits."""
    scheduler = BrokenScheduler(Tick, after=True)
    async with rig(scheduler=scheduler) as r:
        await r.admit("full", prompt_tokens=HUGE)
        short = TenantPolicy(queue=QueuePolicy(ttl_s=1.0))
        ends = r.arrive("ends", prompt_tokens=HUGE, policy=short)
        stays = r.arrive("stays", prompt_tokens=HUGE)
        r.clock.at_us += 2 * SECOND
        r.dispatcher.tick()
        assert [a.reason for a in ends.admissions] == [Reason.FAIL_OPEN]
        assert stays.admissions == []
        scheduler.broken = False
        r.settle("ends")
        r.settle("full")
        await until(lambda: stays.admissions)
        assert stays.admissions[0].reason is Reason.FITS
        r.settle("stays")
        await r.at_rest()
        assert "scheduler" in r.counts.opened


async def test_a_scheduler_that_cannot_let_go_does_not_stop_the_dispatcher() -> None:
    async with rig(scheduler=BrokenScheduler(Gone, after=False)) as r:
        await r.admit("full", prompt_tokens=HUGE)
        r.arrive("b", prompt_tokens=HUGE)
        r.dispatcher.gone("b")
        assert "scheduler" in r.counts.opened
        r.settle("full")
        await until(lambda: r.quiet)
        assert r.store.leases() == ()


async def test_a_ticket_that_cannot_be_opened_gives_its_lease_back() -> None:
    def fails(_: Admitted) -> None:
        raise KeyError("a fault in opening")

    async with rig() as r:
        ticket = r.arrive("a", FakeTicket(on_admitted=fails))
        await until(lambda: "failed" in ticket.told)
        await r.at_rest()
        assert len(r.ledger.settled) == 1
        r.ledger.faults["reserve"] = AWAY
        ticket = r.arrive("b", FakeTicket(on_admitted=fails))
        await until(lambda: "failed" in ticket.told)
        await r.at_rest()


async def test_records_are_kept_and_replay() -> None:
    async with rig() as r:
        await r.admit("full", prompt_tokens=HUGE)
        r.arrive("b", prompt_tokens=HUGE)
        r.arrive("c", model="unknown")
        r.settle("full")
        await until(lambda: len(r.sink.records) == 3)
        by_id = {record.id: record for record in r.sink.records}
        assert set(by_id) == {"full", "b", "c"}
        for record in r.sink.records:
            assert disagreements(record) == ()
            assert record.code_version == "test"
        assert by_id["c"].result is Outcome.SHED
        assert replay(by_id["full"]).worker_id == "w0"
        r.settle("b")
        await r.at_rest()


async def test_a_record_of_an_unenforced_dispatch_names_the_shells_reason() -> None:
    async with rig() as r:
        await r.admit("a", enforce=False)
        (record,) = r.sink.records
        assert record.reason is Reason.ADMISSION_OFF
        assert disagreements(record) == ("reason",)
        r.settle("a")
        await r.at_rest()


async def test_a_record_that_cannot_be_kept_is_counted_and_changes_nothing() -> None:
    async with rig() as r:
        r.sink.broken = True
        await r.admit("a")
        assert r.counts.opened == ["record"]
        r.settle("a")
        await r.at_rest()


async def test_a_retry_elsewhere_with_the_same_id_has_its_own_lease() -> None:
    async with rig("w0", "w1") as r:
        first = await r.admit("a")
        failed = first.admissions[0].worker_id
        second = FakeTicket()
        r.settle("a", Cause.UPSTREAM_ERROR)
        again = replace(arrived("a"), attempt=1, excluded=frozenset({failed}))
        r.dispatcher.arrive(second, again)
        await until(lambda: second.admissions)
        assert second.admissions[0].worker_id != failed
        assert second.lease.attempt == 1
        r.settle("a")
        await r.at_rest()
        assert sorted(r.ledger.settled) == sorted([first.lease.id, second.lease.id])
        assert r.store.leases() == ()


async def test_a_restarted_worker_holds_nothing_of_ours() -> None:
    async with rig() as r:
        await r.admit("a")
        await r.dispatcher.worker_seen(view("w0", epoch="e2", max_model_len=None))
        assert r.store.leases() == ()
        r.settle("a", Cause.UPSTREAM_ERROR)
        await r.at_rest()
        await r.admit("b")
        r.settle("b")
        await r.at_rest()


async def test_a_request_for_a_model_that_nobody_serves_is_refused() -> None:
    async with rig() as r:
        ticket = r.arrive("a", model="unknown")
        assert ticket.told == [("shed", Reason.NO_WORKER)]
        await r.at_rest()


async def test_a_draining_worker_takes_no_more() -> None:
    async with rig("w0", "w1") as r:
        r.dispatcher.drain("w0", True)
        tickets = [await r.admit(f"r{n}", prompt_tokens=16) for n in range(3)]
        assert {ticket.admissions[0].worker_id for ticket in tickets} == {"w1"}
        for number in range(3):
            r.settle(f"r{number}")
        await r.at_rest()


async def test_a_worker_that_failed_is_not_chosen_until_it_is_scraped_again() -> None:
    async with rig("w0", "w1") as r:
        r.dispatcher.worker_failed("w0")
        ticket = await r.admit("a")
        assert ticket.admissions[0].worker_id == "w1"
        r.dispatcher.worker_failed("never seen")
        r.settle("a")
        await r.at_rest()


async def test_a_slow_decision_is_counted() -> None:
    class SlowClock(FakeClock):
        def now_us(self) -> int:
            self.at_us += 6_000
            return self.at_us

    async with rig(clock=SlowClock()) as r:
        await r.admit("a")
        assert r.counts.slow
        assert min(r.counts.slow) >= 6_000
        r.settle("a")
        await until(lambda: r.quiet)


async def test_who_waits_is_looked_at_again_without_any_event() -> None:
    """The scheduler's own wake-ups are performed: the wait ends by time alone."""
    async with rig() as r:
        await r.admit("full", prompt_tokens=HUGE)
        waits = r.arrive("b", prompt_tokens=HUGE, policy=TenantPolicy(queue=QueuePolicy(ttl_s=1.0)))
        r.clock.at_us += 2 * SECOND
        await until(lambda: ("shed", Reason.QUEUE_TTL) in waits.told)
        r.settle("full")
        await r.at_rest()


async def test_after_close_nothing_wakes_the_dispatcher() -> None:
    async with rig() as r:
        await r.admit("full", prompt_tokens=HUGE)
        waits = r.arrive("b", prompt_tokens=HUGE)
        r.settle("full")
        await r.dispatcher.close()
        assert waits.admissions
        assert r.dispatcher._wake is None or r.dispatcher._wake.cancelled()
        r.settle("b")
        await r.at_rest()
