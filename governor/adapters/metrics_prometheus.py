"""PrometheusMetrics: the gateway's counters in an own registry. Nothing here can fail a request.

Tenants beyond `max_tenants` share the label `other`, so that cardinality is bounded.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from governor.adapters import metric_names as names
from governor.adapters.metric_names import Kind, MetricName

OTHER = "other"


class PrometheusMetrics:
    """All metrics of `metric_names`, by name."""

    def __init__(self, max_tenants: int = 200) -> None:
        self.registry = CollectorRegistry()
        self._max_tenants = max_tenants
        self._tenants: set[str] = set()
        self._made: dict[str, Counter | Gauge | Histogram] = {
            metric.name: self._make(metric) for metric in names.ALL
        }

    def _make(self, metric: MetricName) -> Counter | Gauge | Histogram:
        if metric.kind is Kind.COUNTER:
            return Counter(metric.name, metric.help, metric.labels, registry=self.registry)
        if metric.kind is Kind.GAUGE:
            return Gauge(metric.name, metric.help, metric.labels, registry=self.registry)
        return Histogram(
            metric.name, metric.help, metric.labels, registry=self.registry, buckets=metric.buckets
        )

    def count(self, metric: MetricName, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        made = self._made[metric.name]
        assert isinstance(made, Counter)
        (made.labels(**self._bounded(labels)) if metric.labels else made).inc(amount)

    def set(self, metric: MetricName, value: float, **labels: str) -> None:
        """Set a gauge."""
        made = self._made[metric.name]
        assert isinstance(made, Gauge)
        (made.labels(**self._bounded(labels)) if metric.labels else made).set(value)

    def observe(self, metric: MetricName, value: float, **labels: str) -> None:
        """Add to a histogram."""
        made = self._made[metric.name]
        assert isinstance(made, Histogram)
        (made.labels(**self._bounded(labels)) if metric.labels else made).observe(value)

    def _bounded(self, labels: dict[str, str]) -> dict[str, str]:
        tenant = labels.get("tenant")
        if tenant is None or tenant in self._tenants:
            return labels
        if len(self._tenants) < self._max_tenants:
            self._tenants.add(tenant)
            return labels
        return {**labels, "tenant": OTHER}

    # -- governor.services.dispatch.DispatchMetrics ------------------------------------------------

    def failed_open(self, where: str) -> None:
        """A broken part let a request through."""
        self.count(names.FAILED_OPEN, where=where)

    def slow_decision(self, took_us: int) -> None:
        """A decision took longer than the guard."""
        self.count(names.SLOW_DECISIONS)

    def text(self) -> bytes:
        """The exposition."""
        return generate_latest(self.registry)
