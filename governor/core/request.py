"""GovernedRequest: what the scheduler remembers of one request, and its profile as it runs."""

from dataclasses import dataclass
from enum import Enum

from governor.core.admission import Footprint, times
from governor.core.budget import SAFE_CUT_FRACTION, BudgetGrant
from governor.core.dispatch import Arrived, Judged
from governor.core.fleet import WorkerView
from governor.core.forecast import Survival
from governor.core.headroom import Profile, profile
from governor.core.outcomes import Reason
from governor.core.record import GrantInputs
from governor.core.units import kv_area


class RequestState(Enum):
    """Where a request is between its arrival and its end."""

    QUEUED = "queued"
    RESERVING = "reserving"
    RUNNING = "running"


@dataclass(slots=True)
class GovernedRequest:
    """Mutable; owned by the Scheduler. `charged_area` is what its tenant has paid so far."""

    arrived: Arrived
    since_us: int
    seq: int
    state: RequestState = RequestState.QUEUED
    gone: bool = False
    refused_by: frozenset[str] = frozenset()
    not_before_us: int = 0
    looked: tuple[int, int, frozenset[str]] | None = None
    bypassed: int = 0
    why: Reason = Reason.BEHIND_OTHERS
    judged: Judged | None = None
    grant_inputs: GrantInputs | None = None
    grant: BudgetGrant | None = None
    footprint: Footprint | None = None
    worker_id: str | None = None
    charged_area: int = 0
    renewed_us: int = 0
    us_per_token: int = 1
    generated_tokens: int = 0
    thinking_ended_at: int | None = None
    landed_us: int | None = None

    def fit(self, inputs: GrantInputs) -> tuple[BudgetGrant, Footprint]:
        """Grant and footprint from these inputs. Time counts only where a deadline sets a budget,
        so that the many looks at a waiting request cost one computation."""
        arrived, before = self.arrived, self.grant_inputs
        timed = arrived.policy.deadline_s is not None or arrived.demand.deadline_us is not None
        timed = timed or arrived.demand.ask.budget_us is not None
        same = before is not None and (
            before.price == inputs.price and before.max_model_len == inputs.max_model_len
        )
        if not same or timed or self.grant is None or self.footprint is None:
            self.grant_inputs = inputs
            self.grant = inputs.grant(arrived.demand, arrived.policy, arrived.forecast)
            self.footprint = Footprint(arrived.demand, self.grant, arrived.forecast)
        return self.grant, self.footprint

    def forget_fit(self) -> None:
        """Policy or forecast has changed."""
        self.grant = self.footprint = self.grant_inputs = None

    def progress(self, generated_tokens: int, *, thinking_over: bool) -> None:
        """A checkpoint of the running stream. Counts never go back."""
        self.generated_tokens = max(self.generated_tokens, generated_tokens)
        if thinking_over and self.thinking_ended_at is None:
            self.thinking_ended_at = self.generated_tokens

    def profile_on(self, view: WorkerView, now_us: int) -> Profile:
        """The profile of what is held and still expected."""
        self.us_per_token = view.us_per_token
        before, length, since = self._expected()
        demand = self.arrived.demand
        if view.max_model_len is not None:
            length = length.truncated(max(since + 1, view.max_model_len - before))
        made = profile(
            before, length, since, view.block_size, view.us_per_token, view.bin_us, now_us
        )
        return times(made, demand.n)

    def expected_area(self) -> int:
        """KV area of what is generated and still expected."""
        before, length, since = self._expected()
        demand = self.arrived.demand
        done = kv_area(demand.prompt_tokens, self.generated_tokens)
        alive = length.at(since)
        more = 0.0
        if alive > 0.0:
            more = (length.mean_area(before) - length.mean_area(before, since)) / alive
        return max(1, round(demand.n * (done + more)))

    def _expected(self) -> tuple[int, Survival, int]:
        """Tokens before the part that is under way, that part's length, and how much of it is done.

        Under way is the whole output while the request thinks, and the answer after that. A landing
        request has wrap-up and grace before it.
        """
        assert self.footprint is not None
        assert self.grant is not None
        demand, completion = self.arrived.demand, self.grant.completion_tokens
        answer = self.arrived.forecast.answer
        if self.thinking_ended_at is not None:
            left = None if completion is None else max(1, completion - self.thinking_ended_at)
            since = self.generated_tokens - self.thinking_ended_at
            return demand.prompt_tokens + self.thinking_ended_at, answer.truncated(left), since
        if self.landed_us is not None:
            landing = self.grant.wrap_up_tokens + self.grant.grace_tokens
            before = demand.prompt_tokens + self.generated_tokens + landing
            left = None if completion is None else max(1, completion - self.generated_tokens)
            return before, answer.truncated(left), 0
        return demand.prompt_tokens, self.footprint.held, self.generated_tokens

    def needs_as_much_as(self, other: "GovernedRequest") -> bool:
        """Whether a lack of headroom for `other` is one for this too, so that asking is idle.

        A deadline may have to be given up at any moment, so such a request is always asked about.
        """
        mine, theirs = self.arrived.demand, other.arrived.demand
        if self.footprint is None or other.footprint is None or other.why is not Reason.NO_HEADROOM:
            return False
        return (
            mine.deadline_us is None
            and mine.model == theirs.model
            and mine.priority >= theirs.priority
            and mine.prompt_tokens >= theirs.prompt_tokens
            and self.footprint.area >= other.footprint.area
            and self.arrived.excluded >= other.arrived.excluded
        )

    @property
    def landable(self) -> bool:
        """Whether the policy lets the price land it, and it has thought enough to answer well."""
        arrived, grant = self.arrived, self.grant
        if grant is None or not arrived.enforce or self.state is not RequestState.RUNNING:
            return False
        demand, landing = arrived.demand, arrived.policy.landing
        if not (landing.enabled and demand.thinks and demand.landable) or grant.unlanded:
            return False
        if self.landed_us is not None or self.thinking_ended_at is not None:
            return False
        floor = grant.floor_tokens
        if floor is None:
            floor = round(SAFE_CUT_FRACTION * arrived.forecast.natural.quantile(0.5))
        return self.generated_tokens > floor
