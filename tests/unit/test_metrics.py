"""Metrics: every name once, all exposed, labels bounded."""

import re
from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from governor.adapters import metric_names as names
from governor.adapters.metric_names import Kind, MetricName
from governor.adapters.metrics_prometheus import OTHER, PrometheusMetrics
from governor.core.outcomes import Cause

# Label values come from enums, policy, configuration; a request can choose none of these.
LABELS = {"tenant", "cause", "reason", "path", "why", "worker", "code", "where", "result"}


def samples(metrics: PrometheusMetrics) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


def use(metrics: PrometheusMetrics, metric: MetricName) -> None:
    calls: dict[Kind, Callable[..., None]] = {
        Kind.COUNTER: metrics.count,
        Kind.GAUGE: metrics.set,
        Kind.HISTOGRAM: metrics.observe,
    }
    calls[metric.kind](metric, 1.0, **dict.fromkeys(metric.labels, "x"))


def test_names_are_unique_and_well_formed() -> None:
    all_names = [metric.name for metric in names.ALL]
    assert len(set(all_names)) == len(all_names) > 20
    for metric in names.ALL:
        assert re.fullmatch(r"governor_[a-z_]+", metric.name)
        assert not metric.name.endswith("_total"), "exposed with _total by itself"
        assert metric.help.endswith(".") or metric.help.endswith(").")
        assert set(metric.labels) <= LABELS
        assert bool(metric.buckets) is (metric.kind is Kind.HISTOGRAM)
        assert list(metric.buckets) == sorted(metric.buckets)


@pytest.mark.parametrize("metric", names.ALL, ids=lambda metric: metric.name)
def test_every_metric_is_exposed_with_its_labels_once_it_was_used(metric: MetricName) -> None:
    metrics = PrometheusMetrics()
    use(metrics, metric)
    suffix = {Kind.COUNTER: "_total", Kind.GAUGE: "", Kind.HISTOGRAM: "_count"}[metric.kind]
    assert samples(metrics)[metric.name + suffix] == [dict.fromkeys(metric.labels, "x")]


def test_tenants_beyond_the_bound_share_one_label() -> None:
    metrics = PrometheusMetrics(max_tenants=3)
    for number in range(50):
        metrics.count(names.REQUESTS, tenant=f"t{number}", cause=Cause.COMPLETED)
        metrics.observe(names.QUEUE_SECONDS, 0.1, tenant=f"t{number}")
    metrics.count(names.REQUESTS, tenant="t1", cause=Cause.COMPLETED)
    tenants = [labels["tenant"] for labels in samples(metrics)["governor_requests_total"]]
    assert sorted(tenants) == [OTHER, "t0", "t1", "t2"]
    tenants = [labels["tenant"] for labels in samples(metrics)["governor_queue_seconds_count"]]
    assert sorted(tenants) == [OTHER, "t0", "t1", "t2"]


def test_enum_values_are_label_values() -> None:
    metrics = PrometheusMetrics()
    metrics.count(names.REQUESTS, tenant="a", cause=Cause.WRAPPED_UP)
    assert samples(metrics)["governor_requests_total"] == [{"tenant": "a", "cause": "wrapped_up"}]


def test_the_dispatchers_counts_arrive() -> None:
    metrics = PrometheusMetrics()
    metrics.failed_open("ledger")
    metrics.slow_decision(9_000)
    found = samples(metrics)
    assert found["governor_failed_open_total"] == [{"where": "ledger"}]
    assert b"governor_slow_decisions_total 1.0" in metrics.text()


def test_two_gateways_in_one_process_do_not_share_counts() -> None:
    one, other = PrometheusMetrics(), PrometheusMetrics()
    one.slow_decision(1)
    assert b"governor_slow_decisions_total 0.0" in other.text()
