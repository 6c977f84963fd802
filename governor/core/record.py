"""DecisionRecord: one admission decision with all that it was made from, enough to replay it.

Replays call the same pure functions; they need neither the fleet nor the policy file. Where records
are kept is not known here.
"""

from dataclasses import dataclass

from governor.core.admission import AdmissionSettings, Decision, TenantUsage, decide
from governor.core.budget import SAFE_CUT_FRACTION, BudgetGrant, grant
from governor.core.demand import Demand
from governor.core.fleet import FleetView, WorkerLoad
from governor.core.forecast import Forecast
from governor.core.outcomes import Outcome, Reason
from governor.core.placement import Candidate
from governor.core.policy import TenantPolicy

RECORD_SCHEMA = "governor.decision/v1"


@dataclass(frozen=True, slots=True)
class GrantInputs:
    """What `governor.core.budget.grant` was given besides demand, policy and forecast."""

    wrap_up_tokens: int
    max_model_len: int | None
    us_per_token: int | None
    price: float
    now_us: int
    unlanded_draw: float
    safe_cut_fraction: float = SAFE_CUT_FRACTION

    def grant(self, demand: Demand, policy: TenantPolicy, forecast: Forecast) -> BudgetGrant:
        """The grant from these inputs."""
        return grant(
            demand,
            policy,
            forecast,
            wrap_up_tokens=self.wrap_up_tokens,
            max_model_len=self.max_model_len,
            us_per_token=self.us_per_token,
            price=self.price,
            now_us=self.now_us,
            unlanded_draw=self.unlanded_draw,
            safe_cut_fraction=self.safe_cut_fraction,
        )


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """Contract (b). Sums are integers; `policy` is the tenant's policy in force, whole.

    `excluded` are workers that served the model and were not considered (a lost race, a retry
    elsewhere): whether all metrics were stale depends on them too. `ledger_version` is None where
    no reservation was tried. `reason` may be one that the shell gave (bypass, fail open, queue
    bounds); `disagreements` then names it.
    """

    schema: str
    id: str
    now_us: int
    draw: float
    demand: Demand
    policy: TenantPolicy
    policy_hash: str
    code_version: str
    forecast: Forecast
    grant_inputs: GrantInputs
    grant: BudgetGrant
    settings: AdmissionSettings
    usage: TenantUsage
    preferred_worker: str | None
    excluded: tuple[WorkerLoad, ...]
    candidates: tuple[Candidate, ...]
    ledger_version: int | None
    result: Outcome
    reason: Reason
    worker_id: str | None
    retry_after_us: int | None
    area: int
    limit_milliblocks: int | None


def record_of(
    decision: Decision,
    *,
    demand: Demand,
    policy: TenantPolicy,
    policy_hash: str,
    code_version: str,
    forecast: Forecast,
    grant_inputs: GrantInputs,
    grant: BudgetGrant,
    settings: AdmissionSettings,
    fleet: FleetView,
    preferred_worker: str | None = None,
    excluded: frozenset[str] = frozenset(),
    ledger_version: int | None = None,
) -> DecisionRecord:
    """The record of `decision`, from the arguments that `decide` was called with."""
    passed_over = tuple(
        load for load in fleet.serving(demand.model) if load.view.worker_id in excluded
    )
    return DecisionRecord(
        schema=RECORD_SCHEMA,
        id=demand.decision_id,
        now_us=decision.now_us,
        draw=decision.draw,
        demand=demand,
        policy=policy,
        policy_hash=policy_hash,
        code_version=code_version,
        forecast=forecast,
        grant_inputs=grant_inputs,
        grant=grant,
        settings=settings,
        usage=decision.usage,
        preferred_worker=preferred_worker,
        excluded=passed_over,
        candidates=decision.candidates,
        ledger_version=ledger_version,
        result=decision.outcome,
        reason=decision.reason,
        worker_id=decision.worker_id,
        retry_after_us=decision.retry_after_us,
        area=decision.area,
        limit_milliblocks=decision.limit_milliblocks,
    )


def replay(record: DecisionRecord) -> Decision:
    """The decision again: the same pure function on the recorded inputs."""
    considered = tuple(candidate.load for candidate in record.candidates)
    return decide(
        record.demand,
        record.grant,
        record.forecast,
        record.policy,
        FleetView(considered + record.excluded),
        record.usage,
        record.now_us,
        record.draw,
        record.settings,
        preferred_worker=record.preferred_worker,
        excluded=frozenset(load.view.worker_id for load in record.excluded),
    )


def disagreements(record: DecisionRecord) -> tuple[str, ...]:
    """The fields in which a replay differs from the record; empty for a faithful record.

    A difference means other code, a damaged record, or a decision that the shell made.
    """
    again = replay(record)
    replayed = (
        ("grant", record.grant_inputs.grant(record.demand, record.policy, record.forecast)),
        ("candidates", again.candidates),
        ("result", again.outcome),
        ("reason", again.reason),
        ("worker_id", again.worker_id),
        ("retry_after_us", again.retry_after_us),
        ("area", again.area),
        ("limit_milliblocks", again.limit_milliblocks),
    )
    return tuple(name for name, value in replayed if getattr(record, name) != value)
