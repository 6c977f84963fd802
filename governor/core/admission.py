"""Admission: may this request start, where, and if not, why and until when. Decides; performs
nothing.

Pure: the same arguments give the same decision, and a decision holds all that it was made from.
"""

from dataclasses import dataclass, field

from governor.core.budget import BudgetGrant
from governor.core.demand import Demand
from governor.core.fleet import FleetView, WorkerView
from governor.core.forecast import Forecast, Survival, held
from governor.core.headroom import Profile, drained_by, profile
from governor.core.outcomes import Outcome, Reason
from governor.core.placement import Ask, Candidate, PlacementSettings, examine, pick
from governor.core.policy import TenantPolicy
from governor.core.units import US_PER_S

# Which refusal is told when workers differ: the first of these that any worker gave.
_TELLING = (
    Reason.NO_HEADROOM,
    Reason.LONG_TASK_SHARE,
    Reason.FLEET_STALE,
    Reason.DRAINING,
    Reason.NEVER_FITS,
)


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """Fleet-wide numbers of admission.

    A request is predicted-long where its median output is at least `long_output_tokens` or
    `long_model_share` of the worker's longest sequence, whichever is less (ours: a quarter of 16k,
    the usual cap of reasoning evaluations). `retry_least_us` and `retry_most_us` bound what a
    client is told; beyond a minute client SDKs ignore it.
    """

    placement: PlacementSettings = field(default_factory=PlacementSettings)
    long_output_tokens: int = 4096
    long_model_share: float = 0.25
    retry_least_us: int = US_PER_S
    retry_most_us: int = 60 * US_PER_S


@dataclass(frozen=True, slots=True)
class TenantUsage:
    """What a tenant holds: requests in flight, and what is left of its KV-area quota (token²).

    `area_left` is None without a quota; it is negative after a request that used more than was
    forecast.
    """

    in_flight: int = 0
    area_left: int | None = None


class Footprint:
    """What one request will hold, whatever the worker. Remembers the profiles that it has made."""

    __slots__ = ("_demand", "_profiles", "area", "held", "median_tokens")

    def __init__(self, demand: Demand, grant: BudgetGrant, forecast: Forecast) -> None:
        completion = grant.completion_tokens
        thinking = grant.held_thinking_tokens if demand.thinks else 0
        self._demand = demand
        self._profiles: dict[tuple[int, int, int, int | None], Profile] = {}
        self.held: Survival = held(forecast, thinking, completion).truncated(completion)
        self.median_tokens = self.held.quantile(0.5)
        # n completions of one prompt: n outputs, each over the whole prompt.
        self.area = max(1, round(demand.n * self.held.mean_area(demand.prompt_tokens)))

    def profile_on(self, view: WorkerView, now_us: int) -> Profile:
        """The profile on a worker for a start at `now_us`."""
        start_bin = now_us // view.bin_us
        shape = (view.block_size, view.us_per_token, view.bin_us, view.max_model_len)
        found = self._profiles.get(shape)
        if found is None:
            found = self._profiles[shape] = self._make(view, now_us)
        return found.starting(start_bin)

    def _make(self, view: WorkerView, now_us: int) -> Profile:
        longest = self.held
        if view.max_model_len is not None:
            longest = longest.truncated(max(1, view.max_model_len - self._demand.prompt_tokens))
        made = profile(
            self._demand.prompt_tokens,
            longest,
            0,
            view.block_size,
            view.us_per_token,
            view.bin_us,
            now_us,
        )
        return times(made, self._demand.n)


def times(one: Profile, n: int) -> Profile:
    """The profile of n completions of one prompt, as if they all were equally long."""
    if n == 1:
        return one
    return Profile(
        one.start_bin,
        tuple(n * mean for mean in one.mean_milliblocks),
        tuple(n * n * var for var in one.var),
    )


@dataclass(frozen=True, slots=True)
class Decision:
    """An answer with its reason and everything it rests on.

    `retry_after_us` is the predicted wait, for refusals bounded to what a client can be told.
    `candidates` hold every examined worker with its sums, so that `decide` on a fleet of their
    loads, with the same other arguments, gives this decision again. `profile` and
    `limit_milliblocks` are those of the chosen worker. `area` is the forecast KV area in token².
    """

    outcome: Outcome
    reason: Reason
    worker_id: str | None
    retry_after_us: int | None
    candidates: tuple[Candidate, ...]
    profile: Profile | None
    limit_milliblocks: int | None
    area: int
    usage: TenantUsage
    now_us: int
    draw: float

    @property
    def chosen(self) -> Candidate | None:
        """The candidate that was picked."""
        for candidate in self.candidates:
            if candidate.load.view.worker_id == self.worker_id:
                return candidate
        return None

    def fleet(self) -> FleetView:
        """The fleet as the decision saw it, for replay."""
        return FleetView(tuple(candidate.load for candidate in self.candidates))


def decide(
    demand: Demand,
    grant: BudgetGrant,
    forecast: Forecast,
    policy: TenantPolicy,
    fleet: FleetView,
    tenant_usage: TenantUsage,
    now_us: int,
    draw: float,
    settings: AdmissionSettings,
    *,
    footprint: Footprint | None = None,
    preferred_worker: str | None = None,
    excluded: frozenset[str] = frozenset(),
) -> Decision:
    """ADMIT on a worker, QUEUE, or SHED (what waiting cannot mend), with a reason.

    `footprint` may be passed where it was made before from the same demand, grant and forecast; it
    saves time and changes nothing. `excluded` workers are not considered (lost race, retry).
    """
    footprint = footprint or Footprint(demand, grant, forecast)
    serving = fleet.serving(demand.model)
    allowed = tuple(load for load in serving if load.view.worker_id not in excluded)
    ask = Ask(
        prompt_tokens=demand.prompt_tokens,
        priority=demand.priority,
        long_on=lambda view: _is_long(footprint, view, settings),
        long_task_share=policy.long_task_share,
        profile_on=lambda view: footprint.profile_on(view, now_us),
    )
    stale_after_us = settings.placement.stale_after_us
    all_stale = all(load.view.is_stale(now_us, stale_after_us) for load in serving)
    candidates = tuple(
        examine(load, ask, settings.placement, now_us, all_stale=all_stale) for load in allowed
    )
    if serving and not allowed:
        outcome, reason, wait_us = Outcome.QUEUE, Reason.LOST_RACE, None
    else:
        outcome, reason, wait_us = _answer(
            demand, policy, forecast, footprint, candidates, tenant_usage, now_us
        )
    chosen: Candidate | None = None
    if outcome is Outcome.ADMIT:
        slack = settings.placement.affinity_slack
        chosen = pick(candidates, draw, preferred=preferred_worker, slack=slack)
    else:
        wait_us = min(max(wait_us or 0, settings.retry_least_us), settings.retry_most_us)
    return Decision(
        outcome=outcome,
        reason=reason,
        worker_id=chosen.load.view.worker_id if chosen else None,
        retry_after_us=wait_us,
        candidates=candidates,
        profile=footprint.profile_on(chosen.load.view, now_us) if chosen else None,
        limit_milliblocks=chosen.limit_milliblocks if chosen else None,
        area=footprint.area,
        usage=tenant_usage,
        now_us=now_us,
        draw=draw,
    )


def _answer(
    demand: Demand,
    policy: TenantPolicy,
    forecast: Forecast,
    footprint: Footprint,
    candidates: tuple[Candidate, ...],
    usage: TenantUsage,
    now_us: int,
) -> tuple[Outcome, Reason, int | None]:
    """Outcome, reason and predicted wait. What nothing can mend comes first."""
    if not candidates:
        return Outcome.SHED, Reason.NO_WORKER, None
    if all(candidate.reason is Reason.NEVER_FITS for candidate in candidates):
        return Outcome.SHED, Reason.NEVER_FITS, None
    if _misses_deadline(demand, forecast, candidates, now_us):
        return Outcome.SHED, Reason.DEADLINE_UNREACHABLE, None
    own = _own_limits(demand, policy, footprint.area, usage, now_us)
    if own is not None:
        return own
    if any(candidate.fits for candidate in candidates):
        return Outcome.ADMIT, Reason.FITS, None
    given = {candidate.reason for candidate in candidates}
    reason = next(reason for reason in _TELLING if reason in given)
    wait_us = _predicted_wait(footprint, candidates, now_us)
    if wait_us is not None and _misses_deadline(demand, forecast, candidates, now_us + wait_us):
        return Outcome.SHED, Reason.DEADLINE_UNREACHABLE, wait_us
    return Outcome.QUEUE, reason, wait_us


def _is_long(footprint: Footprint, view: WorkerView, settings: AdmissionSettings) -> bool:
    least = settings.long_output_tokens
    if view.max_model_len is not None:
        least = min(least, int(view.max_model_len * settings.long_model_share))
    return footprint.median_tokens >= least


def _misses_deadline(
    demand: Demand, forecast: Forecast, candidates: tuple[Candidate, ...], start_us: int
) -> bool:
    """Whether not even an answer of median length can end in time on the fastest worker."""
    if demand.deadline_us is None:
        return False
    answer_tokens = forecast.answer.truncated(demand.max_completion_tokens).quantile(0.5)
    fastest = min(candidate.load.view.us_per_token for candidate in candidates)
    return start_us + max(1, answer_tokens) * fastest > demand.deadline_us


def _own_limits(
    demand: Demand, policy: TenantPolicy, area: int, usage: TenantUsage, now_us: int
) -> tuple[Outcome, Reason, int | None] | None:
    """The tenant's own limits: QUEUE where waiting mends it in time, else SHED."""
    if policy.max_concurrent is not None and usage.in_flight >= policy.max_concurrent:
        if policy.max_concurrent == 0:
            return Outcome.SHED, Reason.TENANT_CONCURRENCY, None
        return Outcome.QUEUE, Reason.TENANT_CONCURRENCY, None
    quota = policy.kv_area_per_minute
    if quota is None or usage.area_left is None:
        return None
    # A request larger than the whole bucket may run when the bucket is full, and leaves a debt.
    missing = min(area, quota) - usage.area_left
    if quota > 0 and missing <= 0:
        return None
    if quota <= 0:
        return Outcome.SHED, Reason.TENANT_QUOTA, None
    wait_us = -(-missing * 60 * US_PER_S // quota)
    waits_until = demand.arrived_us + int(policy.queue.ttl_s * US_PER_S)
    if demand.deadline_us is not None:
        waits_until = min(waits_until, demand.deadline_us)
    in_time = now_us + wait_us <= waits_until
    return (Outcome.QUEUE if in_time else Outcome.SHED), Reason.TENANT_QUOTA, wait_us


def _predicted_wait(
    footprint: Footprint, candidates: tuple[Candidate, ...], now_us: int
) -> int | None:
    """Microseconds until the expected sums leave room for the request on some worker."""
    waits = []
    for candidate in candidates:
        if candidate.limit_milliblocks is None:
            continue
        view = candidate.load.view
        need = max(footprint.profile_on(view, now_us).mean_milliblocks)
        freed = drained_by(candidate.load.sums, need, candidate.limit_milliblocks)
        if freed is not None:
            waits.append(max(0, freed * view.bin_us - now_us))
    return min(waits, default=None)
