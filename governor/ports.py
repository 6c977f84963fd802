"""Ports: what the services need from the outside world, as Protocols. No logic."""

from typing import Any, Protocol

from governor.core.estimator import Observation
from governor.core.forecast import Forecast
from governor.core.headroom import Profile, SumsView
from governor.core.lease import Expired, Lease, LeaseRequest, Refused, Settled, Settlement
from governor.core.record import DecisionRecord
from governor.core.signals import Control, ControlAck
from governor.core.worker_facts import WorkerInfo, WorkerScrape


class Clock(Protocol):
    """Time. Only services and adapters hold one; the core gets `now_us` as an argument."""

    def now_us(self) -> int:
        """Microseconds on a monotonic clock with an arbitrary origin."""
        ...

    def wall_s(self) -> float:
        """Unix time in seconds, for borders only (logs, response bodies)."""
        ...


class Ledger(Protocol):
    """Leases on the KV pools of workers. Each method is atomic for the pool it touches.

    Refusals are values. Raises `LedgerUnavailable` when the store is away; repeating the call is
    then safe. The owner of a request calls `reserve`, `renew`, `settle` and `confirm_abort`; the
    allocator of the pool calls `expire`; `sums` is open to all.
    """

    async def reserve(self, request: LeaseRequest, now_us: int) -> Lease | Refused:
        """Check headroom and take a lease, in one step. A live lease with the same request id and
        attempt makes it a duplicate, which is refused."""
        ...

    async def renew(
        self, lease_id: str, fence: int, profile: Profile, ttl_us: int, now_us: int
    ) -> Lease | Refused:
        """Swap the profile and extend the lease. Never refused for headroom: memory that is held is
        held; a pool above its limit is marked overcommitted, which refuses reserves."""
        ...

    async def settle(
        self, lease_id: str, fence: int, settlement: Settlement, now_us: int
    ) -> Settled | Refused:
        """Close a lease, exactly once; a second settle changes nothing and says so. A lease that
        has expired is lost to its owner and cannot be settled."""
        ...

    async def expire(
        self,
        worker_id: str,
        worker_epoch: str,
        bin_us: int,
        now_us: int,
        *,
        kv_used_blocks: int | None = None,
    ) -> Expired:
        """Keep a pool honest; called at every scrape, and once before its first reserve.

        A changed epoch releases every lease of the old one. Leases whose time is over become
        orphans; their blocks stay counted until `confirm_abort`, until the worker's own count
        (`kv_used_blocks`, None: unknown) shows them gone, or until a second TTL ends.
        """
        ...

    async def confirm_abort(self, lease_id: str, now_us: int) -> Lease | Refused:
        """The worker has dropped an orphan's request: release its blocks."""
        ...

    async def sums(self, worker_id: str, now_us: int) -> SumsView | Refused:
        """The pool's summed profiles, orphans included."""
        ...


class Predictor(Protocol):
    """Forecasts lengths. Synchronous, no I/O. A failing one fails open: the caller takes the
    estimator's prior and counts it."""

    def forecast(self, model: str, effort: str | None) -> Forecast:
        """What is expected of a request before it starts."""
        ...

    def learn(self, observation: Observation) -> None:
        """Take in how a request ended. Called once for each settled request."""
        ...


class WorkerPort(Protocol):
    """One worker's control plane. Each call raises the `UpstreamFailed` tree, and nothing else."""

    async def join(self) -> WorkerInfo:
        """What the worker can do, and under which epoch."""
        ...

    async def scrape(self) -> WorkerScrape:
        """Its metrics as they are at this moment."""
        ...

    async def control(self, control: Control) -> ControlAck:
        """Tell it to land, change the budget of, or cut a running request."""
        ...


class Recorder(Protocol):
    """Keeps decisions and what became of them, bounded. Called synchronously; must not raise."""

    def decided(self, record: DecisionRecord) -> None:
        """A decision was made; a later one of the same id (another attempt) replaces it."""
        ...

    def ended(self, decision_id: str, outcome: dict[str, Any]) -> None:
        """The request ended like this."""
        ...

    def find(self, decision_id: str) -> dict[str, Any] | None:
        """Record and outcome in plain form; None when neither is kept."""
        ...
