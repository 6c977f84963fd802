"""Fairness: the order of waiting requests. Bands, deadlines, per-tenant virtual counters, area with
ageing. Knows nothing of workers.
"""

import math
from bisect import insort
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from governor.core.outcomes import Priority

# At the end of its longest wait a request passes ones a hundred times smaller that have just come.
AGEING = math.log(100.0)
# Tenants whose counters are remembered; beyond it idle ones are forgotten, lowest counter first:
# they would be lifted at their next arrival anyway.
MAX_IDLE_TENANTS = 10_000


@dataclass(frozen=True, slots=True)
class Waiting:
    """One waiting request. `area` is its predicted KV area (token²), `longest_wait_us` its bound.

    `latest_start_us` is deadline less predicted service time, None without a deadline: since every
    request's slack shrinks alike, the least of it is the least laxity.
    """

    request_id: str
    tenant: str
    band: Priority
    area: int
    arrived_us: int
    seq: int
    longest_wait_us: int
    latest_start_us: int | None = None

    @property
    def rank(self) -> tuple[float, int]:
        """Order within tenant and class: ln(area) less the ageing, which is the same for all at
        any time, then arrival."""
        aged = AGEING * self.arrived_us / max(1, self.longest_wait_us)
        return (math.log(max(1, self.area)) + aged, self.seq)


@dataclass(slots=True)
class _Band:
    urgent: list[Waiting] = field(default_factory=list)
    ordinary: dict[str, list[Waiting]] = field(default_factory=dict)


def _laxity(waiting: Waiting) -> tuple[int, int]:
    return (waiting.latest_start_us or 0, waiting.seq)


def _rank(waiting: Waiting) -> tuple[float, int]:
    return waiting.rank


class FairQueue:
    """Waiting requests and the tenants' virtual counters (VTC, arXiv 2401.00588, in KV area).

    A counter grows by area over weight when a request is dispatched, and is trued up later. Among
    tenants with waiting requests the lowest counter is served first, so that two tenants who both
    always have work waiting never differ by more than two of the largest requests. A tenant that
    comes back is lifted to the lowest counter of those who wait: idleness earns no credit.

    Before that come the priority bands, strictly, and within a band the deadline class by least
    laxity. The deadline class is charged like the rest but not held back by it; a tenant's quota
    is what bounds it.
    """

    __slots__ = ("_bands", "_counters", "_entries", "_last_left", "_tenants", "area")

    def __init__(self) -> None:
        self._bands: dict[Priority, _Band] = {band: _Band() for band in Priority}
        self._entries: dict[str, Waiting] = {}
        self._tenants: dict[str, int] = {}
        self._counters: dict[str, float] = {}
        self._last_left = 0.0
        # Predicted area of all that waits (token²).
        self.area = 0

    def __len__(self) -> int:
        return len(self._entries)

    def waiting_of(self, tenant: str) -> int:
        """How many requests of the tenant wait."""
        return self._tenants.get(tenant, 0)

    def counter(self, tenant: str) -> float:
        """The tenant's virtual counter."""
        return self._counters.get(tenant, 0.0)

    def add(self, waiting: Waiting) -> None:
        """Take in a request. Raises ValueError for an id that waits already."""
        if waiting.request_id in self._entries:
            raise ValueError(f"{waiting.request_id} is waiting already")
        if not self._tenants.get(waiting.tenant):
            self._lift(waiting.tenant)
        self._tenants[waiting.tenant] = self._tenants.get(waiting.tenant, 0) + 1
        self._entries[waiting.request_id] = waiting
        self.area += waiting.area
        band = self._bands[waiting.band]
        if waiting.latest_start_us is not None:
            insort(band.urgent, waiting, key=_laxity)
        else:
            insort(band.ordinary.setdefault(waiting.tenant, []), waiting, key=_rank)

    def remove(self, request_id: str) -> Waiting | None:
        """Take a request out, for whatever reason; None where it does not wait."""
        waiting = self._entries.pop(request_id, None)
        if waiting is None:
            return None
        self.area -= waiting.area
        band = self._bands[waiting.band]
        if waiting.latest_start_us is not None:
            band.urgent.remove(waiting)
        else:
            mine = band.ordinary[waiting.tenant]
            mine.remove(waiting)
            if not mine:
                del band.ordinary[waiting.tenant]
        self._tenants[waiting.tenant] -= 1
        if not self._tenants[waiting.tenant]:
            del self._tenants[waiting.tenant]
            self._last_left = self.counter(waiting.tenant)
            self._forget_idle()
        return waiting

    def charge(self, tenant: str, area: float, weight: float) -> None:
        """Add to a tenant's counter; a negative area gives back (true-up)."""
        self._counters[tenant] = self.counter(tenant) + area / weight

    def order(self, blocked_tenants: Collection[str]) -> Iterator[Waiting]:
        """Requests in the order in which they are due, following removals and charges as they
        happen.

        Where the first of a tenant is passed over, the firsts of the other tenants come before its
        second. Tenants in `blocked_tenants` (looked at each time) are left out.
        """
        for name in Priority:
            band = self._bands[name]
            for waiting in tuple(band.urgent):
                if waiting.tenant not in blocked_tenants:
                    yield waiting
            passed: dict[str, int] = {}
            while (tenant := self._next_tenant(band, passed, blocked_tenants)) is not None:
                index = passed.get(tenant, 0)
                waiting = band.ordinary[tenant][index]
                yield waiting
                if waiting.request_id in self._entries:
                    passed[tenant] = index + 1

    def position(self, request_id: str, most: int = 256) -> int:
        """Place in the order as it stands, from 1; `most` + 1 for any place beyond `most`."""
        for place, waiting in enumerate(self.order(()), start=1):
            if waiting.request_id == request_id or place > most:
                return place
        raise KeyError(request_id)

    def _next_tenant(
        self, band: _Band, passed: dict[str, int], blocked: Collection[str]
    ) -> str | None:
        best: tuple[int, float, int] | None = None
        found: str | None = None
        for tenant, mine in band.ordinary.items():
            index = passed.get(tenant, 0)
            if tenant in blocked or index >= len(mine):
                continue
            key = (index, self.counter(tenant), mine[index].seq)
            if best is None or key < best:
                best, found = key, tenant
        return found

    def _lift(self, tenant: str) -> None:
        floor = min((self.counter(other) for other in self._tenants), default=self._last_left)
        self._counters[tenant] = max(self.counter(tenant), floor)

    def _forget_idle(self) -> None:
        excess = len(self._counters) - len(self._tenants) - MAX_IDLE_TENANTS
        if excess <= 0:
            return
        idle = [tenant for tenant in self._counters if tenant not in self._tenants]
        for tenant in sorted(idle, key=self.counter)[:excess]:
            del self._counters[tenant]
