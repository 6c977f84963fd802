"""Ticket: a request as the dispatcher sees it; what else the dispatcher tells. Protocols only."""

from dataclasses import dataclass
from typing import Protocol

from governor.core.budget import BudgetGrant
from governor.core.lease import Lease
from governor.core.outcomes import Reason
from governor.core.record import DecisionRecord


@dataclass(frozen=True, slots=True)
class Admitted:
    """A ticket's permission to open an upstream attempt. `lease` and `grant` are None when the
    decision path failed and the request goes through ungoverned."""

    worker_id: str
    reason: Reason
    lease: Lease | None
    grant: BudgetGrant | None
    queued_us: int


class Ticket(Protocol):
    """A request as the dispatcher sees it. All methods are called synchronously."""

    def admitted(self, admitted: Admitted) -> None:
        """Open the upstream attempt."""

    def shed(self, reason: Reason, retry_after_us: int, queued_us: int) -> None:
        """Refuse the request."""

    def queued(self, position: int, reason: Reason) -> None:
        """The request waits."""

    def failed(self) -> None:
        """`admitted` raised: refuse the request; its lease is settled already."""

    def land_for_pressure(self) -> None:
        """End this request's thinking: others need the blocks more."""

    def lease_lost(self) -> None:
        """The lease expired: cut the upstream before another byte is forwarded."""


class DispatchMetrics(Protocol):
    """What the dispatcher counts."""

    def failed_open(self, where: str) -> None:
        """An exception or an absent ledger let a request through."""

    def slow_decision(self, took_us: int) -> None:
        """A decision took longer than the guard."""


class DecisionSink(Protocol):
    """Where decision records go."""

    def decided(self, record: DecisionRecord) -> None:
        """Keep the record."""
