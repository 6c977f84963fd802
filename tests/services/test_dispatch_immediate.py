"""Dispatcher over a ledger in its own process: nothing lies between a decision and its lease."""

import asyncio

from governor.adapters.ledger_memory import MemoryLedger
from governor.core.lease import Lease, LeaseRequest, Refused
from governor.core.outcomes import Cause
from governor.core.scheduler import Scheduler
from governor.services.dispatch import Dispatcher
from tests.admission_builders import arrived, settlement, view
from tests.fakes import FakeClock, FakeCounts, FakeSink, FakeTicket
from tests.scheduler_driver import SETTINGS

HUGE = 80 * 16


class CreepingClock(FakeClock):
    """Moves on a little at every look, as a real clock does."""

    def now_us(self) -> int:
        self.at_us += 700
        return self.at_us


class WatchedLedger(MemoryLedger):
    """A real ledger that remembers what it refused."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[str] = []
        self.asked_us: dict[str, int] = {}

    async def reserve(self, request: LeaseRequest, now_us: int) -> Lease | Refused:
        self.asked_us[request.request_id] = now_us
        answer = await super().reserve(request, now_us)
        if isinstance(answer, Refused):
            self.refused.append(answer.reason)
        return answer


async def composed(
    ledger: MemoryLedger, clock: FakeClock, sink: FakeSink | None = None
) -> Dispatcher:
    dispatcher = Dispatcher(
        Scheduler(SETTINGS),
        ledger,
        clock,
        FakeCounts(),
        sink or FakeSink(),
        SETTINGS.admission,
        "test",
        immediate_ledger=True,
    )
    await dispatcher.worker_seen(view("w0", max_model_len=None))
    return dispatcher


async def test_a_request_that_fits_is_admitted_before_its_arrival_returns() -> None:
    dispatcher = await composed(MemoryLedger(), FakeClock())
    ticket = FakeTicket()
    dispatcher.arrive(ticket, arrived("a"))
    assert len(ticket.admissions) == 1
    dispatcher.settled("a", settlement(cause=Cause.COMPLETED))
    assert dispatcher.open_leases == 0
    assert dispatcher.scheduler.in_flight == 0


async def test_who_waits_starts_as_the_blocks_come_back_and_not_later() -> None:
    dispatcher = await composed(MemoryLedger(), FakeClock())
    dispatcher.arrive(FakeTicket(), arrived("full", prompt_tokens=HUGE))
    waits = FakeTicket()
    dispatcher.arrive(waits, arrived("b", prompt_tokens=HUGE))
    assert waits.admissions == []
    dispatcher.settled("full", settlement(cause=Cause.COMPLETED))
    assert len(waits.admissions) == 1


async def test_the_ledger_is_asked_at_the_moment_of_each_decision() -> None:
    ledger, sink = WatchedLedger(), FakeSink()
    dispatcher = await composed(ledger, CreepingClock(), sink)
    dispatcher.arrive(FakeTicket(), arrived("full", prompt_tokens=HUGE))
    waiting = [FakeTicket() for _ in range(4)]
    for number, ticket in enumerate(waiting):
        dispatcher.arrive(ticket, arrived(f"r{number}", prompt_tokens=500))
    # One pass dispatches several at once: each lease is asked for as of that one pass.
    dispatcher.settled("full", settlement(cause=Cause.COMPLETED))
    admitted = [record for record in sink.records if record.worker_id is not None]
    assert len(admitted) >= 3
    assert {r.id: r.now_us for r in admitted} == {r.id: ledger.asked_us[r.id] for r in admitted}
    assert len({r.now_us for r in admitted if r.id != "full"}) < len(admitted) - 1


async def test_the_ledger_never_refuses_what_its_own_gateway_has_just_decided() -> None:
    ledger, clock = WatchedLedger(), CreepingClock()
    dispatcher = await composed(ledger, clock)
    tickets = {f"r{i}": FakeTicket() for i in range(120)}
    for name, ticket in tickets.items():
        dispatcher.arrive(ticket, arrived(name, prompt_tokens=160 + len(name) * 7))
    ended: set[str] = set()
    for step in range(4_000):
        running = [n for n, t in tickets.items() if t.admissions and n not in ended]
        if not running:
            break
        name = running[step % len(running)]
        if step % 5 == 0:
            dispatcher.settled(name, settlement(cause=Cause.COMPLETED))
            ended.add(name)
        else:
            dispatcher.renewed(name, 16 * (step % 40 + 1), thinking_over=False)
        clock.at_us += 9_000
        dispatcher.tick()
    assert ended == set(tickets)
    assert ledger.refused == []


async def test_a_ledger_that_waits_after_all_is_found_out() -> None:
    class Waits(MemoryLedger):
        async def reserve(self, request: LeaseRequest, now_us: int) -> Lease | Refused:
            await asyncio.sleep(0)
            return await super().reserve(request, now_us)

    counts = FakeCounts()
    dispatcher = Dispatcher(
        Scheduler(SETTINGS),
        Waits(),
        FakeClock(),
        counts,
        FakeSink(),
        SETTINGS.admission,
        "test",
        immediate_ledger=True,
    )
    await dispatcher.worker_seen(view("w0", max_model_len=None))
    dispatcher.arrive(FakeTicket(), arrived("a"))
    assert counts.opened == ["dispatch"]
