"""A worker's Prometheus text to a WorkerScrape, by exact metric names.

vLLM's names; the deprecated `gpu_cache_usage_perc` is read where the present one is absent. Only
the lines of interest are parsed: an engine's whole exposition takes 13 ms, which would stop the
event loop at each scrape.
"""

import math
import re

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from governor.core.errors import UpstreamProtocolError
from governor.core.worker_facts import WorkerScrape

_GAUGES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv",
    "vllm:gpu_cache_usage_perc": "kv_old",
    "vllm:num_preemptions_total": "preemptions",
    "vllm:generation_tokens_total": "generation",
    "vllm:inter_token_latency_seconds_sum": "itl_sum",
    "vllm:inter_token_latency_seconds_count": "itl_count",
    "process_start_time_seconds": "start",
}


_OTHERS = ("vllm:num_requests_waiting_by_reason", "vllm:cache_config_info")
_NAMES = frozenset((*_GAUGES, *_OTHERS))
# A sample: its name, then labels or a space. Comments and empty lines are no samples.
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)[{ \t]")


class WorkerIsSeveralPools(UpstreamProtocolError):
    """One URL balances over several engines: its numbers cannot be those of one KV pool."""


def parse_metrics(text: str) -> WorkerScrape:
    """Read one exposition. Raises UpstreamProtocolError for text that is none."""
    found: dict[str, float] = {}
    engines: set[str] = set()
    pool: dict[str, str] = {}
    try:
        for family in text_string_to_metric_families(_of_interest(text)):
            for sample in family.samples:
                _take(sample, found, engines, pool)
    except ValueError as error:
        raise UpstreamProtocolError(f"not Prometheus text: {error}") from error
    if len(engines) > 1:
        raise WorkerIsSeveralPools(f"several engines behind one URL: {sorted(engines)}")
    kv = found.get("kv", found.get("kv_old"))
    itl = found.get("itl_sum"), found.get("itl_count")
    return WorkerScrape(
        running=_int(found.get("running")),
        waiting=_int(found.get("waiting")),
        waiting_capacity=_int(found.get("waiting_capacity")),
        kv_used_fraction=kv,
        num_blocks=_int(_number(pool.get("num_gpu_blocks"))),
        block_size=_int(_number(pool.get("block_size"))),
        preemptions=_int(found.get("preemptions")),
        generation_tokens=_int(found.get("generation")),
        inter_token_s=(itl[0], itl[1]) if itl[0] is not None and itl[1] is not None else None,
        process_start_s=found.get("start"),
    )


def _of_interest(text: str) -> str:
    """The samples that are read. Raises ValueError for a line that is none."""
    kept: list[str] = []
    for line in text.split("\n"):
        sample = line.strip()
        if not sample or sample.startswith("#"):
            continue
        match = _SAMPLE.match(sample)
        if match is None:
            raise ValueError(f"{sample:.40}")
        if match[1] in _NAMES:
            kept.append(sample)
    return "".join(f"{sample}\n" for sample in kept)


def _take(sample: Sample, found: dict[str, float], engines: set[str], pool: dict[str, str]) -> None:
    name = sample.name
    if not math.isfinite(sample.value):
        return
    if name in _GAUGES:
        # Several models of one engine share its pool: their counts add up, fractions are equal.
        key = _GAUGES[name]
        if key in ("kv", "kv_old", "start"):
            found[key] = sample.value
        else:
            found[key] = found.get(key, 0.0) + sample.value
        if "engine" in sample.labels:
            engines.add(sample.labels["engine"])
    elif name == "vllm:num_requests_waiting_by_reason":
        if sample.labels.get("reason") == "capacity":
            found["waiting_capacity"] = found.get("waiting_capacity", 0.0) + sample.value
    elif name == "vllm:cache_config_info":
        pool.update(sample.labels)


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _int(value: float | None) -> int | None:
    return None if value is None else round(value)
