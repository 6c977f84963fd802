"""What crosses the Scheduler's border: the events that it takes and the actions that it returns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from governor.core.admission import AdmissionSettings, Decision
from governor.core.budget import BudgetGrant
from governor.core.demand import Demand
from governor.core.fleet import FleetView, WorkerView
from governor.core.forecast import Forecast
from governor.core.headroom import Profile
from governor.core.lease import Lease, LeaseRequest, Refused, Settlement
from governor.core.outcomes import Reason
from governor.core.overcommit import OvercommitSettings
from governor.core.policy import TenantPolicy
from governor.core.price import PriceSettings
from governor.core.record import GrantInputs
from governor.core.units import US_PER_S


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Numbers of the scheduler.

    One pass looks at `looks_per_pass` waiting requests at most and decides on `attempts_per_pass`
    of them, which bounds its time. A request may be overtaken by `max_bypass` others that fit where
    it does not; then the workers that could serve it are kept for it until it fits. A lease lives
    `lease_ttl_us` and is renewed at half of it. While something waits the scheduler asks to be
    woken at least every `poll_us`, since headroom also appears by the mere passing of time.
    """

    admission: AdmissionSettings = field(default_factory=AdmissionSettings)
    overcommit: OvercommitSettings = field(default_factory=OvercommitSettings)
    price: PriceSettings = field(default_factory=PriceSettings)
    attempts_per_pass: int = 16
    looks_per_pass: int = 64
    max_bypass: int = 16
    lease_ttl_us: int = 60 * US_PER_S
    poll_us: int = US_PER_S // 10


@dataclass(frozen=True, slots=True)
class Arrived:
    """A request wants to start. `draw` and `unlanded_draw` in [0, 1) are independent.

    `wrap_up_tokens` is the length of the model's wrap-up text. With `enforce=False` (mode off,
    observe or shadow, bypass, fail open; `open_reason` says which) it is dispatched at once, and
    what admission would have said is recorded. `excluded` workers have failed this request already.
    """

    request_id: str
    demand: Demand
    forecast: Forecast
    policy: TenantPolicy
    draw: float
    unlanded_draw: float
    wrap_up_tokens: int = 0
    enforce: bool = True
    open_reason: Reason = Reason.ADMISSION_OFF
    attempt: int = 0
    preferred_worker: str | None = None
    excluded: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Scraped:
    """A worker's metrics were read, or a worker is introduced (`scraped_us=None`)."""

    view: WorkerView


@dataclass(frozen=True, slots=True)
class WorkerRemoved:
    """A worker left the fleet. Its requests end by themselves."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class Draining:
    """A worker takes no more requests, or takes them again."""

    worker_id: str
    draining: bool


@dataclass(frozen=True, slots=True)
class Reserved:
    """The ledger granted the lease that a `Reserve` asked for."""

    request_id: str
    lease: Lease


@dataclass(frozen=True, slots=True)
class LeaseRefused:
    """The ledger refused it: somebody else was faster, or it knows what the scheduler does not."""

    request_id: str
    refused: Refused


@dataclass(frozen=True, slots=True)
class Renewed:
    """A stream reached a checkpoint: so much is generated, and thinking is over or not."""

    request_id: str
    generated_tokens: int
    thinking_over: bool


@dataclass(frozen=True, slots=True)
class Settled:
    """A request that held a lease has ended."""

    request_id: str
    settlement: Settlement


@dataclass(frozen=True, slots=True)
class Gone:
    """The client went away. Of a running request the relay takes care."""

    request_id: str


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    """Policies by tenant. What waits is judged by the changed ones; its place stays."""

    policies: Mapping[str, TenantPolicy]


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


Event: TypeAlias = (
    Arrived
    | Scraped
    | WorkerRemoved
    | Draining
    | Reserved
    | LeaseRefused
    | Renewed
    | Settled
    | Gone
    | PolicyChanged
    | Tick
)


@dataclass(frozen=True, slots=True)
class Judged:
    """A decision with the arguments that it was made from, for the decision record."""

    decision: Decision
    demand: Demand
    policy: TenantPolicy
    forecast: Forecast
    grant_inputs: GrantInputs
    grant: BudgetGrant
    fleet: FleetView
    preferred_worker: str | None
    excluded: frozenset[str]


@dataclass(frozen=True, slots=True)
class Reserve:
    """Take this lease, then report `Reserved` or `LeaseRefused`.

    `judged` is what admission said; where that is not ADMIT the dispatch was not enforced, and
    `reason` says why it happened all the same.
    """

    request_id: str
    worker_id: str
    lease_request: LeaseRequest
    grant: BudgetGrant
    reason: Reason
    judged: Judged
    queued_us: int


@dataclass(frozen=True, slots=True)
class Shed:
    """Refuse the request. `judged` is the last that admission said of it, None for nothing."""

    request_id: str
    reason: Reason
    retry_after_us: int
    judged: Judged | None
    queued_us: int


@dataclass(frozen=True, slots=True)
class Queued:
    """The request waits, at this place (from 1), for this reason."""

    request_id: str
    position: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Renew:
    """Swap the lease's profile and extend it."""

    request_id: str
    profile: Profile
    ttl_us: int


@dataclass(frozen=True, slots=True)
class Abandon:
    """The client left while its lease was being reserved: settle the lease unused."""

    request_id: str
    lease: Lease


@dataclass(frozen=True, slots=True)
class LandForPressure:
    """Land this running thinker: others need the blocks more."""

    request_id: str


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send `Tick` at this time; replaces the wake asked for before."""

    at_us: int


Action: TypeAlias = Reserve | Shed | Queued | Renew | Abandon | LandForPressure | WakeAt
