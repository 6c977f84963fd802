"""Every metric that the gateway exports: name, kind, help, labels. Dashboards use these names only.

Labels come from enums, from tenants of the policy file and from worker ids, never from requests.
"""

from dataclasses import dataclass
from enum import Enum

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
TOKENS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0, 131072.0)


class Kind(Enum):
    """Prometheus metric types in use."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class MetricName:
    """One metric. Counters are exposed with `_total`."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def _counter(name: str, text: str, *labels: str) -> MetricName:
    return MetricName(f"governor_{name}", Kind.COUNTER, text, labels)


def _gauge(name: str, text: str, *labels: str) -> MetricName:
    return MetricName(f"governor_{name}", Kind.GAUGE, text, labels)


def _histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> MetricName:
    return MetricName(f"governor_{name}", Kind.HISTOGRAM, text, labels, buckets)


REQUESTS = _counter("requests", "Requests by how they ended.", "tenant", "cause")
REFUSED = _counter("refused", "Requests refused, by reason.", "tenant", "reason")
INVALID = _counter("invalid_requests", "Requests that could not be served as sent.", "code")
LANDINGS = _counter("landings", "Thinking ended by Governor.", "tenant", "reason", "path")
LANDING_FAILURES = _counter("landing_failures", "Landings that the worker did not perform.")
EMPTY_ANSWERS = _counter("empty_answers", "Ended requests without any answer.", "tenant", "cause")
CAP_VIOLATIONS = _counter("cap_violations", "Requests whose reasoning exceeded the granted cap.")
LOOPS = _counter("loops", "Loops found.", "tenant")
REASONING_TOKENS = _counter("reasoning_tokens", "Reasoning tokens.", "tenant")
ANSWER_TOKENS = _counter("answer_tokens", "Answer tokens.", "tenant")
KV_AREA = _counter("kv_area", "KV area of ended requests, token².", "tenant")
WASTE_TOKENS = _counter("waste_tokens", "Output tokens that bought nothing.", "tenant", "why")
SIGNAL_GAPS = _counter("signal_gaps", "Gaps in the workers' signal rows.")
SIGNALS_LOST = _counter("signals_lost", "Times that a worker's signal feed went away.", "worker")
OBSERVE_FAULTS = _counter("observe_faults", "Events that passed through without being understood.")
ESTIMATED = _counter("estimated_counts", "Requests whose token counts are estimates.")
FAULTS = _counter("faults", "Exceptions of Governor that were caught.", "where")
FAILED_OPEN = _counter("failed_open", "Requests let through past a broken part.", "where")
SLOW_DECISIONS = _counter("slow_decisions", "Decisions that took longer than 5 ms.")
UPSTREAM_FAILURES = _counter("upstream_failures", "Failed upstream attempts.", "worker")
POLICY_RELOADS = _counter("policy_reloads", "Reloads of the policy file.", "result")
QUEUE_SECONDS = _histogram("queue_seconds", "Time in the gateway's queue.", SECONDS, "tenant")
TTFT_SECONDS = _histogram("ttft_seconds", "Arrival to first token.", SECONDS, "tenant")
REQUEST_SECONDS = _histogram("request_seconds", "Arrival to end.", SECONDS, "tenant")
GRANT_TOKENS = _histogram("grant_tokens", "Thinking tokens granted.", TOKENS, "tenant")
LEASES_ACTIVE = _gauge("leases_active", "Leases held by this process.")
REQUESTS_WAITING = _gauge("requests_waiting", "Requests in the gateway's queue.")
STREAMS_OPEN = _gauge("streams_open", "Requests in flight.")
WORKER_FRESH = _gauge("worker_fresh", "1 while the worker's metrics are fresh.", "worker")
WORKER_SIGNALS = _gauge("worker_signals", "1 while the signal feed is alive.", "worker")
WORKER_CAPACITY = _gauge("worker_capacity_blocks", "Blocks of the worker's KV pool.", "worker")
WORKER_FORECAST = _gauge("worker_forecast_blocks", "Blocks held now by our leases.", "worker")
WORKER_US_PER_TOKEN = _gauge("worker_us_per_token", "Measured decode pace.", "worker")
WORKER_PRICE = _gauge("worker_kv_price", "Price of KV on the worker (0: idle).", "worker")

ALL: tuple[MetricName, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, MetricName)
)
