"""Gateway: what happens to a request before admission and after its end. One per process.

Authenticates, parses, forecasts, hands over to the dispatcher, keeps the requests that run. Built
by `wiring`; what the local routes show is in `views`.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from governor.adapters import metric_names as names
from governor.adapters.metrics_prometheus import PrometheusMetrics
from governor.core.dispatch import Arrived
from governor.core.draw import draw_for
from governor.core.errors import RequestInvalid, UpstreamFailed
from governor.core.estimator import Observation, RunningEstimator
from governor.core.exchange import StreamReport
from governor.core.families import family_of
from governor.core.forecast import Forecast
from governor.core.lease import Settlement
from governor.core.outcomes import Cause, LandingPath, Mode, Reason, WrapUpReason
from governor.core.policy import PolicySet, TenantPolicy, effective_mode
from governor.core.signals import Control, SignalRow
from governor.gateway import responses
from governor.gateway.callers import resolve_policy, tenant_of
from governor.gateway.exchange import ClientExchange
from governor.gateway.other_paths import other_body, other_request
from governor.gateway.plan import Attempt, WorkerFacts
from governor.gateway.prompt_size import PromptSizes
from governor.gateway.request import LiveRequest
from governor.gateway.upstream import UpstreamPool
from governor.gateway.watchers import Watchers
from governor.gateway.wire import ParsedRequest, asked_priority, parse, upstream_body
from governor.gateway.workers import Worker
from governor.ports import Clock, Predictor, Recorder, WorkerPort
from governor.services.dispatch import Dispatcher

log = logging.getLogger("governor.gateway")

COMPLETION_PATHS = ("/v1/chat/completions", "/v1/completions")


@dataclass(slots=True)
class GatewayParts:
    """What a gateway is composed of."""

    clock: Clock
    dispatcher: Dispatcher
    predictor: Predictor
    metrics: PrometheusMetrics
    recorder: Recorder
    workers: dict[str, Worker]
    controls: dict[str, WorkerPort]
    policies: Callable[[], PolicySet]
    families: tuple[tuple[str, str], ...] = ()
    admission: bool = True
    seed: int = 0
    idle_timeout_s: float = 300.0
    sizes: PromptSizes = field(default_factory=PromptSizes)
    poke: Callable[[str], None] = lambda worker_id: None


class Gateway:
    """Shell of every `LiveRequest`."""

    def __init__(self, parts: GatewayParts) -> None:
        self.parts = parts
        self.idle_timeout_s = parts.idle_timeout_s
        self.live: dict[str, LiveRequest] = {}
        self.watchers = Watchers()
        self._tasks: set[asyncio.Task[None]] = set()
        self._arrived_us: dict[str, tuple[int, int]] = {}

    # -- the way in -------------------------------------------------------------------------------

    def serve(self, exchange: ClientExchange) -> None:
        """Take a request off the hot route. Every refusal is an OpenAI error body."""
        decision_id = uuid.uuid4().hex
        try:
            request = self._intake(exchange, decision_id)
        except RequestInvalid as error:
            self.parts.metrics.count(names.INVALID, code=error.code or "invalid_request")
            exchange.respond(*responses.invalid(error, decision_id))
            return
        except Exception:
            log.exception("intake failed")
            self.fault("intake")
            exchange.respond(*responses.internal(decision_id))
            return
        self.live[decision_id] = request
        request.begin()

    def refuse_body(self, exchange: ClientExchange) -> None:
        """The body is larger than allowed."""
        error = RequestInvalid("the request body is too large", code="body_too_large")
        self.parts.metrics.count(names.INVALID, code="body_too_large")
        exchange.respond(*responses.invalid(error, uuid.uuid4().hex))

    def _intake(self, exchange: ClientExchange, decision_id: str) -> LiveRequest:
        parts = self.parts
        now_us = parts.clock.now_us()
        policies = parts.policies()
        tenant = tenant_of(exchange.headers, policies, parts.clock.wall_s())
        text_bytes = 0

        def estimate(model: str, size: int) -> int:
            nonlocal text_bytes
            text_bytes = size
            return parts.sizes.estimate(model, size)

        if exchange.method == "POST" and exchange.path in COMPLETION_PATHS:
            base = policies.tenant(tenant) or TenantPolicy(tenant)
            parsed = parse(
                exchange.path,
                exchange.body,
                exchange.headers,
                decision_id=decision_id,
                policy=base,
                now_us=now_us,
                prompt_tokens_estimate=estimate,
                thinks=lambda model: family_of(model, parts.families) is not None,
            )
            self._check_model(parsed.demand.model)
        else:
            parsed = other_request(exchange, decision_id, tenant, now_us, self._any_model())
        asked = asked_priority(exchange.headers)
        found = resolve_policy(policies, tenant, parsed.demand.model, asked)
        parsed = replace(parsed, demand=replace(parsed.demand, priority=found.priority))
        self._arrived_us[decision_id] = (now_us, text_bytes)
        return self._request(exchange, parsed, found.policy)

    def _check_model(self, model: str) -> None:
        served = {name for w in self.parts.workers.values() if w.info for name in w.info.models}
        if served and model not in served:
            raise RequestInvalid(
                f"the model {model!r} does not exist", "model", code="model_not_found"
            )

    def _any_model(self) -> str:
        for worker in self.parts.workers.values():
            if worker.info is not None and worker.info.models:
                return worker.info.models[0]
        return ""

    def _request(
        self, exchange: ClientExchange, parsed: ParsedRequest, policy: TenantPolicy
    ) -> LiveRequest:
        parts, demand = self.parts, parsed.demand
        decision_id = demand.decision_id
        mode = effective_mode(policy, draw_for(parts.seed, decision_id, "mode"))
        if parsed.endpoint == "other":
            mode = Mode.OFF if mode is Mode.OFF else Mode.OBSERVE
        family = family_of(demand.model, parts.families)
        enforce = parts.admission and (mode is Mode.ENFORCE or parsed.endpoint == "other")
        forecast = self._forecast(demand.model, demand.ask.effort)
        arrived = Arrived(
            request_id=decision_id,
            demand=demand,
            forecast=forecast,
            policy=policy,
            draw=draw_for(parts.seed, decision_id, "placement"),
            unlanded_draw=draw_for(parts.seed, decision_id, "unlanded"),
            wrap_up_tokens=self._wrap_up_tokens(demand.model),
            enforce=enforce,
            open_reason=Reason.ADMISSION_OFF,
        )
        return LiveRequest(self, exchange, parsed, policy, mode, forecast, family, arrived)

    def _forecast(self, model: str, effort: str | None) -> Forecast:
        """The predictor's word; the prior where it fails (DESIGN §12: fail open, counted)."""
        try:
            return self.parts.predictor.forecast(model, effort)
        except Exception:
            log.exception("the predictor failed; using the prior")
            self.parts.metrics.failed_open("forecast")
            return RunningEstimator().forecast(model, effort)

    def _wrap_up_tokens(self, model: str) -> int:
        """The longest wrap-up text among the workers of a model: the budget must hold on any."""
        serving = (w.info for w in self.parts.workers.values() if w.info is not None)
        return max((len(i.wrap_up_ids) for i in serving if model in i.models), default=0)

    # -- Shell ------------------------------------------------------------------------------------

    def now_us(self) -> int:
        """Microseconds on the monotonic clock."""
        return self.parts.clock.now_us()

    def pool(self, worker_id: str) -> UpstreamPool:
        """Connections to a worker."""
        return self.parts.workers[worker_id].pool

    def facts(self, worker_id: str) -> WorkerFacts:
        """What a plan needs to know of a worker."""
        return self.parts.workers[worker_id].facts()

    def upstream_request(self, attempt: Attempt, exchange: ClientExchange) -> bytes:
        """The whole HTTP request for the worker."""
        worker = self.parts.workers[attempt.worker.worker_id]
        if attempt.parsed.endpoint == "other":
            return other_body(exchange, worker)
        body = upstream_body(
            attempt.parsed,
            attempt.grant,
            features=attempt.worker.features,
            rid=attempt.rid,
            budget_path=attempt.budget_path,
            asks_token_ids=attempt.asks_token_ids,
            governed=attempt.steered,
        )
        headers = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "x-request-id": attempt.rid,
            "x-governor-attempt": str(attempt.number),
        }
        for name in ("traceparent", "tracestate"):
            if name in exchange.headers:
                headers[name] = exchange.headers[name]
        return worker.request_head("POST", exchange.path, len(body), headers) + body

    def arrive(self, request: LiveRequest, arrived: Arrived) -> None:
        """Hand a request to admission."""
        self.parts.dispatcher.arrive(request, arrived)

    def gone(self, request: LiveRequest) -> None:
        """The client left while its request waited."""
        self._forget(request)
        self.parts.recorder.ended(
            request.id, {"tenant": request.policy.tenant, "cause": Cause.CLIENT_GONE}
        )
        self.parts.dispatcher.gone(request.id)
        self.parts.metrics.count(
            names.REQUESTS, tenant=request.policy.tenant, cause=Cause.CLIENT_GONE
        )

    def withdraw(self, request: LiveRequest) -> None:
        """Take a waiting request out of admission."""
        self.parts.dispatcher.gone(request.id)

    def settle(self, request: LiveRequest, settlement: Settlement) -> None:
        """An attempt ended."""
        self.parts.dispatcher.settled(request.id, settlement)
        self._count_settlement(request.policy.tenant, settlement)

    def renew(self, request: LiveRequest, generated_tokens: int, thinking_over: bool) -> None:
        """A stream reached a checkpoint."""
        self.parts.dispatcher.renewed(request.id, generated_tokens, thinking_over=thinking_over)

    def control(self, request: LiveRequest, control: Control) -> None:
        """Send a control message; the answer goes to the request."""
        assert request.attempt is not None
        port = self.parts.controls[request.attempt.worker.worker_id]
        task = asyncio.get_running_loop().create_task(self._control(request, port, control))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _control(self, request: LiveRequest, port: WorkerPort, control: Control) -> None:
        try:
            ack = await port.control(control)
        except UpstreamFailed as error:
            log.warning("control %s of %s not delivered: %s", control.op, request.id, error)
            answer, detail = None, str(error)
        else:
            answer, detail = ack, ack.detail or ""
        if request.attempt is not None and request.attempt.number == control.attempt:
            request.acked(answer, detail)

    def worker_failed(self, worker_id: str, detail: str) -> None:
        """A connection to a worker failed."""
        self.parts.workers[worker_id].last_error = detail
        self.parts.metrics.count(names.UPSTREAM_FAILURES, worker=worker_id)
        self.parts.dispatcher.worker_failed(worker_id)
        self.parts.poke(worker_id)

    def opened(self, request: LiveRequest) -> None:
        """An upstream attempt starts."""
        tenant, metrics = request.policy.tenant, self.parts.metrics
        metrics.observe(names.QUEUE_SECONDS, request.queued_us / 1e6, tenant=tenant)
        grant = request.grant
        if grant is not None and grant.thinking_tokens is not None:
            metrics.observe(names.GRANT_TOKENS, grant.thinking_tokens, tenant=tenant)

    def refused(
        self, request: LiveRequest, reason: Reason, retry_after_us: int, queued_us: int
    ) -> None:
        """Admission said no."""
        self._forget(request)
        tenant = request.policy.tenant
        self.parts.metrics.count(names.REQUESTS, tenant=tenant, cause=Cause.REFUSED)
        self.parts.metrics.count(names.REFUSED, tenant=tenant, reason=reason)
        self.parts.recorder.ended(
            request.id, {"tenant": tenant, "cause": Cause.REFUSED, "reason": reason}
        )
        log.info("decision=%s tenant=%s outcome=shed reason=%s", request.id, tenant, reason)
        draw = draw_for(self.parts.seed, request.id, "jitter")
        answer = responses.refused(reason, retry_after_us, request.id, queued_us, draw)
        request.exchange.respond(*answer)

    def failed(self, request: LiveRequest) -> None:
        """Governor itself failed in opening an upstream attempt."""
        self._forget(request)
        self.fault("open")
        cause = Cause.UPSTREAM_ERROR
        self.parts.metrics.count(names.REQUESTS, tenant=request.policy.tenant, cause=cause)
        self.parts.recorder.ended(
            request.id,
            {"tenant": request.policy.tenant, "cause": cause, "detail": "internal error"},
        )
        request.exchange.respond(*responses.internal(request.id))

    def upstream_failed(
        self, request: LiveRequest, detail: str, status: int | None, timed_out: bool
    ) -> None:
        """No worker answered."""
        answer = responses.upstream_failed(detail, status, request.id, timed_out=timed_out)
        request.exchange.respond(*answer)

    def ended(
        self, request: LiveRequest, report: StreamReport, observation: Observation | None
    ) -> None:
        """The request is over: learn, count, record, log. Exactly once."""
        arrived_us, text_bytes = self._arrived_us.get(request.id, (report.ended_us, 0))
        self._forget(request)
        if observation is not None and request.parsed.endpoint == "chat":
            self._learn(observation)
        if report.prompt_tokens and not request.parsed.demand.prompt_tokens_exact:
            self.parts.sizes.learn(request.parsed.demand.model, text_bytes, report.prompt_tokens)
        self._count(request, report, arrived_us)
        outcome = outcome_of(request, report, arrived_us)
        self.parts.recorder.ended(request.id, outcome)
        log.info(
            "decision=%s tenant=%s cause=%s landed=%s reasoning=%d answer=%d exact=%s",
            request.id,
            request.policy.tenant,
            report.cause,
            report.wrap_up_reason or "no",
            report.reasoning_tokens,
            report.answer_tokens,
            report.exact,
        )

    def _learn(self, observation: Observation) -> None:
        try:
            self.parts.predictor.learn(observation)
        except Exception:
            log.exception("the predictor could not learn")
            self.parts.metrics.failed_open("learn")

    def _count(self, request: LiveRequest, report: StreamReport, arrived_us: int) -> None:
        metrics, tenant = self.parts.metrics, request.policy.tenant
        metrics.count(names.REQUESTS, tenant=tenant, cause=report.cause)
        metrics.observe(names.REQUEST_SECONDS, (report.ended_us - arrived_us) / 1e6, tenant=tenant)
        if report.first_token_us is not None:
            ttft_s = (report.first_token_us - arrived_us) / 1e6
            metrics.observe(names.TTFT_SECONDS, ttft_s, tenant=tenant)
        metrics.count(names.REASONING_TOKENS, report.reasoning_tokens, tenant=tenant)
        metrics.count(names.ANSWER_TOKENS, report.answer_tokens, tenant=tenant)
        if report.wrap_up_reason is not None:
            metrics.count(
                names.LANDINGS,
                tenant=tenant,
                reason=report.wrap_up_reason,
                path=report.landing_path,
            )
        ended_well = report.cause in (Cause.COMPLETED, Cause.WRAPPED_UP, Cause.CUT_OFF)
        if ended_well and not report.answered and request.parsed.endpoint == "chat":
            metrics.count(names.EMPTY_ANSWERS, tenant=tenant, cause=report.cause)
        for metric, amount in (
            (names.CAP_VIOLATIONS, int(report.cap_violated)),
            (names.LANDING_FAILURES, report.landing_failures),
            (names.SIGNAL_GAPS, report.signal_gaps),
            (names.OBSERVE_FAULTS, report.observe_faults),
            (names.ESTIMATED, int(not report.exact and request.parsed.endpoint != "other")),
        ):
            if amount:
                metrics.count(metric, amount)
        if report.loop is not None:
            metrics.count(names.LOOPS, tenant=tenant)

    def _count_settlement(self, tenant: str, settlement: Settlement) -> None:
        """KV area and waste of one attempt."""
        metrics = self.parts.metrics
        metrics.count(names.KV_AREA, settlement.area, tenant=tenant)
        waste = settlement.waste
        for why, tokens in (
            (WrapUpReason.LOOP.value, waste.looped_tokens),
            (Cause.CUT_OFF.value, waste.cut_tokens),
            (Cause.CLIENT_GONE.value, waste.cancelled_tokens),
        ):
            if tokens:
                metrics.count(names.WASTE_TOKENS, tokens, tenant=tenant, why=why)

    def fault(self, where: str) -> None:
        """An exception in Governor was caught."""
        self.parts.metrics.count(names.FAULTS, where=where)

    def _forget(self, request: LiveRequest) -> None:
        self.live.pop(request.id, None)
        self._arrived_us.pop(request.id, None)
        self.watchers.end(request.id)

    # -- signals ----------------------------------------------------------------------------------

    def rows(self, rows: tuple[SignalRow, ...]) -> None:
        """Rows of a worker's feed."""
        for row in rows:
            request = self.live.get(row.rid)
            if request is not None:
                request.signal(row)
                self.watchers.publish(row)

    def feed_state(self, worker_id: str, alive: bool, detail: str) -> None:
        """A worker's feed came up or went away."""
        worker = self.parts.workers[worker_id]
        lost = worker.signals_alive and not alive
        worker.signals_alive = alive
        if not lost:
            return
        log.warning("signals of %s lost: %s", worker_id, detail)
        self.parts.metrics.count(names.SIGNALS_LOST, worker=worker_id)
        for request in list(self.live.values()):
            if request.attempt is not None and request.attempt.worker.worker_id == worker_id:
                request.signals_lost()


def outcome_of(request: LiveRequest, report: StreamReport, arrived_us: int) -> dict[str, object]:
    """What became of a request, in plain form."""
    loop = report.loop
    return {
        "tenant": request.policy.tenant,
        "cause": report.cause.value,
        "landed": report.wrap_up_reason.value if report.wrap_up_reason else None,
        "landing_path": report.landing_path.value
        if report.landing_path is not LandingPath.NONE
        else None,
        "prompt_tokens": report.prompt_tokens,
        "reasoning_tokens": report.reasoning_tokens,
        "answer_tokens": report.answer_tokens,
        "exact": report.exact,
        "count_source": report.count_source.value,
        "answered": report.answered,
        "finish_reason": report.finish_reason,
        "cap_violated": report.cap_violated,
        "landing_failures": report.landing_failures,
        "reopened_tokens": report.reopened_tokens,
        "signal_gaps": report.signal_gaps,
        "loop": None
        if loop is None
        else {"period_tokens": loop.period_tokens, "run_tokens": loop.run_tokens},
        "queued_ms": request.queued_us // 1000,
        "took_ms": (report.ended_us - arrived_us) // 1000,
        "worker": request.attempt.worker.worker_id if request.attempt else None,
        "detail": report.detail,
    }
