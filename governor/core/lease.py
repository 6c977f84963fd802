"""Lease: a request's hold on KV blocks of one worker over time, and what the ledger exchanges.

Values only; the stores that keep leases are adapters behind `governor.ports.Ledger`.
"""

from dataclasses import dataclass
from enum import StrEnum

from governor.core.headroom import Profile
from governor.core.outcomes import Cause, WrapUpReason

LEASE_SCHEMA = "governor.lease/v1"


class RefusalReason(StrEnum):
    """Why the ledger did not do what was asked. Values, never exceptions."""

    NO_HEADROOM = "no_headroom"
    OVERCOMMITTED = "overcommitted"
    STALE_EPOCH = "stale_epoch"
    UNKNOWN_WORKER = "unknown_worker"
    DUPLICATE = "duplicate"
    UNKNOWN_LEASE = "unknown_lease"
    STALE_FENCE = "stale_fence"
    EXPIRED = "expired"
    ALREADY_SETTLED = "already_settled"
    STILL_LIVE = "still_live"
    LEDGER_FULL = "ledger_full"


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """What `reserve` asks for. `limit_milliblocks`, `z` and `sigma_c` are those of the decision, so
    that the ledger repeats the same check on its own sums, atomically. `force` skips the check
    (admission off): the worker is then marked overcommitted where the sums exceed the limit.
    """

    request_id: str
    attempt: int
    worker_id: str
    worker_epoch: str
    profile: Profile
    area_charged: int
    forecast_version: str
    ttl_us: int
    limit_milliblocks: int | None
    z: float
    sigma_c: float
    force: bool = False


@dataclass(frozen=True, slots=True)
class Lease:
    """A hold. `ledger_version` counts the changes of the pool up to this one's reserve. `fence`
    grows with every change; whoever acts on an older fence is refused.

    `profile_mean` (milliblocks) and `profile_var` (milliblocks²) have one value for each of 64 bins
    from the absolute bin `start_bin` on. `area_charged` is in token².
    """

    id: str
    request_id: str
    attempt: int
    worker_id: str
    worker_epoch: str
    profile_mean: tuple[int, ...]
    profile_var: tuple[int, ...]
    start_bin: int
    area_charged: int
    forecast_version: str
    expires_us: int
    fence: int
    ledger_version: int = 0

    @property
    def profile(self) -> Profile:
        """The hold as a profile that can be added to and taken from a pool's sums."""
        return Profile(self.start_bin, self.profile_mean, self.profile_var)


@dataclass(frozen=True, slots=True)
class Refused:
    """The ledger's no. `ledger_version` counts the changes of that worker's pool."""

    reason: RefusalReason
    ledger_version: int


@dataclass(frozen=True, slots=True)
class Waste:
    """Output tokens that bought nothing, by why (DESIGN §11)."""

    looped_tokens: int = 0
    cut_tokens: int = 0
    preempted_tokens: int = 0
    spliced_tokens: int = 0
    cancelled_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Settlement:
    """What a request really used, and how it ended. `area` is in token²."""

    prompt_tokens: int
    reasoning_tokens: int
    answer_tokens: int
    area: int
    cause: Cause
    wrap_up_reason: WrapUpReason | None = None
    waste: Waste = Waste()


@dataclass(frozen=True, slots=True)
class Settled:
    """The ledger's receipt: the lease as it was, closed with `settlement`."""

    lease: Lease
    settlement: Settlement
    ledger_version: int


@dataclass(frozen=True, slots=True)
class Expired:
    """What `expire` found: leases orphaned by it, and leases whose blocks it released."""

    orphaned: tuple[Lease, ...]
    released: tuple[Lease, ...]
    ledger_version: int
