"""Fakes behind the ports: a clock that is set, a worker's control plane, tickets, broken parts."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from governor.core.lease import Lease, LeaseRequest, Refused
from governor.core.outcomes import Reason
from governor.core.record import DecisionRecord
from governor.core.signals import Control, ControlAck, ControlStatus
from governor.core.worker_facts import WorkerInfo, WorkerScrape
from governor.services.ticket import Admitted


@dataclass(slots=True)
class FakeClock:
    """Time stands still unless a test moves it."""

    at_us: int = 0

    def now_us(self) -> int:
        return self.at_us

    def wall_s(self) -> float:
        return self.at_us / 1e6


@dataclass(slots=True)
class FakeWorkerPort:
    """A worker's control plane. An answer that is an exception is raised."""

    info: WorkerInfo | Exception = field(default_factory=lambda: WorkerInfo("e1", ("m",)))
    metrics: WorkerScrape | Exception = field(default_factory=WorkerScrape)
    joins: int = 0
    scrapes: int = 0
    controls: list[Control] = field(default_factory=list)

    async def join(self) -> WorkerInfo:
        self.joins += 1
        if isinstance(self.info, Exception):
            raise self.info
        return self.info

    async def scrape(self) -> WorkerScrape:
        self.scrapes += 1
        if isinstance(self.metrics, Exception):
            raise self.metrics
        return self.metrics

    async def control(self, control: Control) -> ControlAck:
        self.controls.append(control)
        return ControlAck(control.rid, control.attempt, control.fence, ControlStatus.APPLIED)


@dataclass(slots=True)
class FakeTicket:
    """A request as the dispatcher sees it, with everything that it was told, in order."""

    told: list[Any] = field(default_factory=list)
    on_admitted: Callable[[Admitted], None] | None = None

    def admitted(self, admitted: Admitted) -> None:
        self.told.append(admitted)
        if self.on_admitted is not None:
            self.on_admitted(admitted)

    def shed(self, reason: Reason, retry_after_us: int, queued_us: int) -> None:
        self.told.append(("shed", reason))

    def failed(self) -> None:
        self.told.append("failed")

    def queued(self, position: int, reason: Reason) -> None:
        self.told.append(("queued", position, reason))

    def land_for_pressure(self) -> None:
        self.told.append("land")

    def lease_lost(self) -> None:
        self.told.append("lease_lost")

    @property
    def admissions(self) -> list[Admitted]:
        return [told for told in self.told if isinstance(told, Admitted)]

    @property
    def lease(self) -> Lease:
        (admitted,) = self.admissions
        assert admitted.lease is not None
        return admitted.lease


@dataclass(slots=True)
class FakeCounts:
    """What the dispatcher counted."""

    opened: list[str] = field(default_factory=list)
    slow: list[int] = field(default_factory=list)

    def failed_open(self, where: str) -> None:
        self.opened.append(where)

    def slow_decision(self, took_us: int) -> None:
        self.slow.append(took_us)


@dataclass(slots=True)
class FakeSink:
    """Where decision records go."""

    records: list[DecisionRecord] = field(default_factory=list)
    broken: bool = False

    def decided(self, record: DecisionRecord) -> None:
        if self.broken:
            raise RuntimeError("the sink is broken")
        self.records.append(record)


class LedgerProxy:
    """A ledger in front of another: tests hold its calls back or let them fail, by name."""

    def __init__(self, ledger: Any) -> None:
        self._ledger = ledger
        self.faults: dict[str, Exception] = {}
        self.gates: dict[str, Any] = {}
        self.calls: list[str] = []
        self.settled: list[str] = []

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._ledger, name)

        async def call(*args: Any, **named: Any) -> Any:
            self.calls.append(name)
            if name in self.gates:
                await self.gates[name].wait()
            if name in self.faults:
                raise self.faults[name]
            answer = await real(*args, **named)
            if name == "settle" and not isinstance(answer, Refused):
                self.settled.append(args[0])
            return answer

        return call if callable(real) else real

    async def reserve(self, request: LeaseRequest, now_us: int) -> Lease | Refused:
        answer = await self.__getattr__("reserve")(request, now_us)
        assert isinstance(answer, Lease | Refused)
        return answer
