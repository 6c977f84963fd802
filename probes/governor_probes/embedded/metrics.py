"""The worker's metrics under vLLM's names. Gauges are read at scrape time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from governor_probes.embedded.request import EngineRequest

_LATENCY_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
    10.0, 20.0, 40.0, 80.0, 160.0, 640.0,
)  # fmt: skip
_LABELS = ("engine", "model_name")
_FINISHED = ("stop", "length", "abort", "error", "repetition")


@dataclass(frozen=True, slots=True)
class EngineGauges:
    """A reading of the engine: request counts, and the share of KV blocks held by requests."""

    running: int
    waiting: int
    kv_usage: float


class _GaugeCollector(Collector):
    def __init__(
        self, read: Callable[[], EngineGauges], model: str, num_blocks: int, block_size: int
    ) -> None:
        self._read = read
        self._labels = ["0", model]
        self._cache = {
            "block_size": str(block_size),
            "num_gpu_blocks": str(num_blocks),
            "enable_prefix_caching": "True",
            "engine": "0",
            "model_name": model,
        }

    def collect(self) -> Iterator[Metric]:
        now = self._read()
        for name, text, value in (
            ("vllm:num_requests_running", "Requests in the running batch.", float(now.running)),
            ("vllm:num_requests_waiting", "Requests waiting to be scheduled.", float(now.waiting)),
            ("vllm:kv_cache_usage_perc", "KV-cache usage; 1 is full.", now.kv_usage),
        ):
            family = GaugeMetricFamily(name, text, labels=_LABELS)
            family.add_metric(self._labels, value)
            yield family
        info = GaugeMetricFamily(
            "vllm:cache_config_info", "Cache configuration.", labels=list(self._cache)
        )
        info.add_metric(list(self._cache.values()), 1.0)
        yield info


class WorkerMetrics:
    """Counters and histograms of one worker; safe to update from the engine's thread."""

    def __init__(self, model: str) -> None:
        self._model = model
        self.registry = CollectorRegistry()
        self._success = Counter(
            "vllm:request_success",
            "Finished requests.",
            [*_LABELS, "finished_reason"],
            registry=self.registry,
        )
        for reason in _FINISHED:
            self._success.labels("0", model, reason)
        self._prompt = self._counter("vllm:prompt_tokens", "Prompt tokens processed.")
        self._generated = self._counter("vllm:generation_tokens", "Tokens generated.")
        self._preemptions = self._counter("vllm:num_preemptions", "Preemptions (recomputation).")
        self._queries = self._counter("vllm:prefix_cache_queries", "Prompt tokens looked up.")
        self._hits = self._counter("vllm:prefix_cache_hits", "Prompt tokens found cached.")
        self._ttft = self._histogram("vllm:time_to_first_token_seconds", "Time to first token.")
        self._itl = self._histogram("vllm:inter_token_latency_seconds", "Time between tokens.")
        self._e2e = self._histogram("vllm:e2e_request_latency_seconds", "Arrival to end.")
        self._queue = self._histogram("vllm:request_queue_time_seconds", "Arrival to first step.")

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, _LABELS, registry=self.registry).labels("0", self._model)

    def _histogram(self, name: str, text: str) -> Histogram:
        metric = Histogram(name, text, _LABELS, registry=self.registry, buckets=_LATENCY_BUCKETS)
        return metric.labels("0", self._model)

    def watch(self, read: Callable[[], EngineGauges], num_blocks: int, block_size: int) -> None:
        """Adds the gauges that are read at scrape time."""
        self.registry.register(_GaugeCollector(read, self._model, num_blocks, block_size))

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)

    def scheduled(self, request: EngineRequest, now_s: float) -> None:
        """A request's first step begins."""
        self._queue.observe(max(0.0, now_s - request.arrival_s))
        self._prompt.inc(len(request.prompt_ids))
        self._queries.inc(len(request.prompt_ids))
        self._hits.inc(request.cached_tokens or 0)

    def preempted(self) -> None:
        """A running request lost its blocks and will be recomputed."""
        self._preemptions.inc()

    def tokens_generated(self, tokens: int) -> None:
        """Output tokens of one step."""
        self._generated.inc(tokens)

    def token_timed(self, request: EngineRequest, now_s: float) -> None:
        """One more token of a request; keeps the request's token times."""
        if request.last_token_s is None:
            request.first_token_s = now_s
            self._ttft.observe(now_s - request.arrival_s)
        else:
            self._itl.observe(now_s - request.last_token_s)
        request.last_token_s = now_s

    def finished(self, request: EngineRequest, now_s: float) -> None:
        """A request has ended for whatever reason."""
        reason = request.finish_reason or "error"
        self._success.labels("0", self._model, reason).inc()
        self._e2e.observe(now_s - request.arrival_s)
