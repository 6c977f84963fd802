"""From a grant and a worker to the plan of one upstream attempt. Pure: no transport, no clock."""

from dataclasses import dataclass
from typing import Any

from governor.adapters.chunk_msgspec import decode_chunk
from governor.core.budget import BudgetGrant
from governor.core.exchange import StreamPlan, StreamReport
from governor.core.families import FamilyProfile
from governor.core.forecast import Forecast
from governor.core.lease import Settlement, Waste
from governor.core.outcomes import Cause, LandingPath, Mode, Strictness, WrapUpReason
from governor.core.policy import LoopPolicy, TenantPolicy
from governor.core.session import SessionLimits
from governor.core.units import kv_area
from governor.gateway.wire import ParsedRequest

NO_LOOPS = LoopPolicy(enabled=False)


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What a plan needs to know of the worker that serves the attempt."""

    worker_id: str
    features: frozenset[str]
    think_end_ids: tuple[int, ...]
    wrap_up_tokens: int
    us_per_token: int
    signals_alive: bool


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of one request: who serves it and under which terms."""

    parsed: ParsedRequest
    policy: TenantPolicy
    mode: Mode
    grant: BudgetGrant | None
    forecast: Forecast
    family: FamilyProfile | None
    worker: WorkerFacts
    rid: str
    number: int
    queued_us: int
    head_request: bool = False

    @property
    def enforced(self) -> bool:
        """Whether a budget is applied and landings are performed."""
        return self.mode is Mode.ENFORCE and self.grant is not None

    @property
    def thinks(self) -> bool:
        """Whether this request may think at all."""
        demand = self.parsed.demand
        return demand.thinks and self.family is not None and demand.landable

    @property
    def steered(self) -> bool:
        """Whether the grant takes the place of the client's own words on thinking: also where it
        switches thinking off, since not every worker knows every dialect's switch."""
        if not self.enforced or self.grant is None or self.family is None:
            return False
        return self.thinks or self.grant.thinking_off

    @property
    def budget_path(self) -> LandingPath:
        """How the budget reaches the worker."""
        grant = self.grant
        if not self.enforced or not self.thinks or grant is None or grant.thinking_tokens is None:
            return LandingPath.NONE
        features = self.worker.features
        if "thinking_token_budget" in features and self.parsed.endpoint == "chat":
            return LandingPath.NATIVE
        return LandingPath.CONTROL if "land" in features else LandingPath.NONE

    @property
    def asks_token_ids(self) -> bool:
        """Whether the stream itself must carry token ids, for want of a signal feed."""
        return not self.worker.signals_alive and "return_token_ids" in self.worker.features


def limits_of(attempt: Attempt) -> SessionLimits:
    """What binds the session of this attempt."""
    grant, demand = attempt.grant, attempt.parsed.demand
    landable = attempt.enforced and attempt.thinks and attempt.policy.landing.enabled
    if grant is None or not landable or grant.thinking_off:
        return SessionLimits(None, None, False, False)
    deadlines = [demand.deadline_us]
    if demand.ask.budget_us is not None:
        deadlines.append(demand.arrived_us + demand.ask.budget_us)
    if attempt.policy.deadline_s is not None:
        deadlines.append(demand.arrived_us + int(attempt.policy.deadline_s * 1e6))
    due = min((moment for moment in deadlines if moment is not None), default=None)
    land_at_us = None
    if due is not None:
        tail = grant.wrap_up_tokens + grant.answer_reserve_tokens + grant.grace_tokens
        land_at_us = due - tail * attempt.worker.us_per_token
    return SessionLimits(
        # With hint, grace and wrap-up lie after the number that was asked for.
        cap_tokens=grant.held_thinking_tokens
        if grant.strictness is Strictness.HINT
        else grant.thinking_tokens,
        engine_budget_tokens=grant.engine_budget_tokens,
        engine_enforces=attempt.budget_path is LandingPath.NATIVE,
        landable=True,
        land_at_us=land_at_us,
        unlanded=grant.unlanded,
    )


def plan_of(attempt: Attempt, decision_id: str) -> StreamPlan:
    """The stream machine's plan."""
    parsed, policy, worker = attempt.parsed, attempt.policy, attempt.worker
    strip: list[bytes] = []
    if attempt.asks_token_ids and not parsed.wants_token_ids:
        strip += [b"token_ids", b"prompt_token_ids"]
    if parsed.demand.stream and not parsed.wants_usage:
        strip.append(b"usage")
    if "signals" in worker.features:
        strip.append(b"governor_landing")
    watched = attempt.mode is not Mode.OFF and parsed.demand.n == 1
    grant = attempt.grant
    return StreamPlan(
        rid=attempt.rid,
        attempt=attempt.number,
        endpoint=parsed.endpoint,
        client_streams=parsed.demand.stream,
        limits=limits_of(attempt),
        governed=watched,
        strip=tuple(strip),
        drop_usage_event=not parsed.wants_usage,
        want_block=parsed.wants_governor_block,
        reasoning_field=policy.reasoning_field,
        grace_tokens=grant.grace_tokens if grant is not None else policy.landing.grace_tokens,
        wrap_up_text=policy.landing.wrap_up_text,
        control_path=LandingPath.CONTROL if "land" in worker.features else LandingPath.NONE,
        signals_expected=worker.signals_alive,
        think_end_ids=worker.think_end_ids,
        loops=policy.loops if attempt.thinks else NO_LOOPS,
        describe=tuple(describe(attempt, decision_id).items()),
        decode=decode_chunk,
        relay_only=parsed.endpoint == "other",
        head_request=attempt.head_request,
    )


def describe(attempt: Attempt, decision_id: str) -> dict[str, Any]:
    """The part of the `governor` block that is known before the first byte."""
    grant = attempt.grant
    return {
        "decision_id": decision_id,
        "tenant": attempt.policy.tenant,
        "mode": attempt.mode.value,
        "asked_tokens": grant.asked_tokens if grant else None,
        "granted_tokens": grant.thinking_tokens if grant else None,
        "granted_reason": grant.reason.value if grant else "not_governed",
        "thinking_off": grant.thinking_off if grant else False,
        "below_floor": grant.below_floor if grant else False,
        "budget_path": attempt.budget_path.value,
        "worker": attempt.worker.worker_id,
        "attempt": attempt.number,
        "queued_ms": attempt.queued_us // 1000,
        "forecast_p50_tokens": attempt.forecast.natural.quantile(0.5),
        "forecast_p90_tokens": attempt.forecast.natural.quantile(0.9),
        "forecast_fallback": attempt.forecast.fallback,
        "notes": list(parsed_notes(attempt.parsed)),
    }


def parsed_notes(parsed: ParsedRequest) -> tuple[str, ...]:
    """What was changed or ignored of the client's request, in words."""
    notes = tuple(parsed.notes)
    if parsed.demand.n > 1:
        notes += ("n > 1: admitted and relayed, never landed",)
    return notes


def settlement_of(report: StreamReport, prompt_estimate: int) -> Settlement:
    """What the ledger and the fairness counters are told. Waste is what bought no answer."""
    prompt = report.prompt_tokens if report.prompt_tokens is not None else prompt_estimate
    output = report.reasoning_tokens + report.answer_tokens
    looped = cut = cancelled = 0
    if report.loop is not None and report.wrap_up_reason is WrapUpReason.LOOP:
        looped = max(0, report.loop.run_tokens)
    if report.cause is Cause.CUT_OFF:
        cut = output
    elif report.cause is Cause.CLIENT_GONE:
        cancelled = output
    return Settlement(
        prompt_tokens=prompt,
        reasoning_tokens=report.reasoning_tokens,
        answer_tokens=report.answer_tokens,
        area=kv_area(prompt, output),
        cause=report.cause,
        wrap_up_reason=report.wrap_up_reason,
        waste=Waste(looped_tokens=looped, cut_tokens=cut, cancelled_tokens=cancelled),
    )
