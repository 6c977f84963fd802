"""The admission benchmark's figures: losses, preemptions, order, fairness, makespan. Pure."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.admission_load import BANDS, BLOCK_TOKENS, GOLD, POOL_BLOCKS, WEIGHTS, Served
from benchmarks.report import Figure, quantile

# Of the heavy tenant's share; 60 s hold some 500 dispatches of very different size.
SHARE_TOLERANCE = 0.05
# What the learned overcommit aims at where work is always waiting.
PREEMPTED_TARGET = 0.01
# Less is the time in which a request is taken in and decided on.
LEAST_WAIT_S = 0.05


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a worker. `preemptions` counts since the start of the run."""

    at_s: float
    kv_usage: float
    running: int
    waiting: int
    preemptions: int


@dataclass(frozen=True, slots=True)
class Run:
    """One crowd, or one closed loop, through one gateway."""

    served: tuple[Served, ...]
    samples: tuple[Sample, ...]
    preemptions: int
    makespan_s: float

    @property
    def lost(self) -> int:
        return sum(served.lost for served in self.served)

    @property
    def usage_peak(self) -> float:
        return max((sample.kv_usage for sample in self.samples), default=0.0)

    @property
    def usage_mean(self) -> float:
        """From the first request to the last answer."""
        inside = [s.kv_usage for s in self.samples if s.at_s <= self.makespan_s]
        return sum(inside) / len(inside) if inside else 0.0

    @property
    def usage_mean_queued(self) -> float | None:
        """While requests waited in the gateway; None where none did."""
        waited = [s for s in self.served if (s.wait_s or 0.0) > LEAST_WAIT_S]
        if not waited:
            return None
        first_us = min(s.arrived_us or 0 for s in self.served if s.arrived_us is not None)
        last_us = max(s.dispatched_us or 0 for s in waited)
        inside = [s.kv_usage for s in self.samples if s.at_s <= (last_us - first_us) / 1e6]
        return sum(inside) / len(inside) if inside else None


@dataclass(frozen=True, slots=True)
class Measured:
    """All runs. `on[i]` and `off[i]` got the same crowd; `cold` gateways had seen nothing before;
    in `loop` the clients of both tenants always had work waiting."""

    on: tuple[Run, ...]
    off: tuple[Run, ...]
    cold: tuple[Run, ...]
    loop: Run


@dataclass(frozen=True, slots=True)
class Fairness:
    """KV areas (token²) of the requests dispatched while both tenants waited in their band.

    `gap_area` is the range of the difference of area over weight, `largest_area` the largest
    request. Counters are charged the forecast and trued up as a request runs, so that what the
    requests under way will really use is a part of the gap. `gold` and `silver` are running sums.
    """

    gold_share: float
    gap_area: float
    largest_area: int
    dispatches: int
    gold: tuple[int, ...]
    silver: tuple[int, ...]


class _Backlog:
    """How many of these requests wait at a time."""

    def __init__(self, served: Sequence[Served]) -> None:
        known = [s for s in served if s.dispatched_us is not None and s.arrived_us is not None]
        self._arrived = sorted(s.arrived_us or 0 for s in known)
        self._dispatched = sorted(s.dispatched_us or 0 for s in known)

    def waiting(self, at_us: int) -> int:
        """Arrived before this time and not dispatched before it."""
        return bisect_left(self._arrived, at_us) - bisect_left(self._dispatched, at_us)


def fairness(run: Run) -> Fairness | None:
    """Fairness of a run; None where the two never waited together."""
    backlogs = {
        (tenant, band): _Backlog(
            [s for s in run.served if (s.asked.tenant, s.asked.band) == (tenant, band)]
        )
        for tenant in WEIGHTS
        for band in BANDS
    }
    counted = [
        served
        for served in sorted(run.served, key=lambda s: s.dispatched_us or 0)
        if served.dispatched_us is not None
        and served.asked.band is not None
        and all(backlogs[t, served.asked.band].waiting(served.dispatched_us) for t in WEIGHTS)
    ]
    used = _running([(s.asked.tenant, s.reply.kv_area or 0) for s in counted])
    gold, silver = ([sums[tenant] for sums in used] for tenant in WEIGHTS)
    if not counted or not gold[-1] + silver[-1]:
        return None
    return Fairness(
        gold_share=gold[-1] / (gold[-1] + silver[-1]),
        gap_area=_gap(used),
        largest_area=max(s.reply.kv_area or 0 for s in counted),
        dispatches=len(counted),
        gold=tuple(gold),
        silver=tuple(silver),
    )


def _running(charges: Sequence[tuple[str, int]]) -> list[dict[str, int]]:
    """The tenants' sums after each charge."""
    sums = dict.fromkeys(WEIGHTS, 0)
    found = []
    for tenant, area in charges:
        sums[tenant] += area
        found.append(dict(sums))
    return found


def _gap(running: Sequence[Mapping[str, int]]) -> float:
    """Range of the difference of area over weight; the difference at the start is unknown."""
    first, second = WEIGHTS
    apart = [s[first] / WEIGHTS[first] - s[second] / WEIGHTS[second] for s in running]
    return max(0.0, *apart) - min(0.0, *apart)


def order_violations(run: Run, *, of_bands: bool = False) -> int:
    """Dispatches that went before a waiting request which the policy puts first and which needs no
    more memory: one of the earlier band, or an earlier one of the same tenant and band.

    A request that fits may pass a larger one that does not; between the tenants of a band areas
    decide, which `fairness` looks at. So only such pairs have an order. `of_bands` counts the pairs
    of different bands alone.
    """
    known = [s for s in run.served if s.dispatched_us is not None and s.asked.band is not None]
    return sum(
        any(
            _passed(late, other) and not (of_bands and late.asked.band == other.asked.band)
            for other in known
        )
        for late in known
    )


def _passed(late: Served, other: Served) -> bool:
    """Whether `other` waited, was due, and would have fit when `late` was dispatched."""
    arrived_us, dispatched_us = other.arrived_us or 0, other.dispatched_us or 0
    if not arrived_us < (late.dispatched_us or 0) < dispatched_us:
        return False
    if (other.reply.prompt_tokens or 0) > (late.reply.prompt_tokens or 0):
        return False
    if (other.forecast_area or 0) > (late.forecast_area or 0):
        return False
    if other.asked.band != late.asked.band:
        return other.asked.band == BANDS[0]
    return other.asked.tenant == late.asked.tenant and arrived_us < (late.arrived_us or 0)


def waits(runs: Sequence[Run], band: str) -> list[float]:
    """Seconds in the queue of a band's requests, all runs together."""
    return [
        served.wait_s
        for run in runs
        for served in run.served
        if served.asked.band == band and served.wait_s is not None
    ]


def _spread(name: str, values: Sequence[float | None]) -> dict[str, Figure]:
    """Median over the rounds under the name, with `_min` and `_max`."""
    known = [value for value in values if value is not None]
    if not known:
        return {name: None, f"{name}_min": None, f"{name}_max": None}
    return {name: median(known), f"{name}_min": min(known), f"{name}_max": max(known)}


def _arm_figures(arm: str, runs: Sequence[Run]) -> dict[str, Figure]:
    """Figures of the rounds of one side. Losses are totals, the rest medians over the rounds."""
    served = [one for run in runs for one in run.served]
    latencies = [one.reply.latency_s for one in served]
    return {
        f"lost_{arm}": sum(run.lost for run in runs) if runs else None,
        f"pressure_landings_{arm}": sum(one.reply.landed == "pressure" for one in served),
        f"accuracy_{arm}": sum(one.right for one in served) / len(served) if served else None,
        f"latency_p50_{arm}_s": quantile(latencies, 0.5),
        f"latency_p95_{arm}_s": quantile(latencies, 0.95),
        **_spread(f"makespan_{arm}_s", [run.makespan_s for run in runs]),
        **_spread(f"kv_usage_peak_{arm}", [run.usage_peak for run in runs]),
        **_spread(f"kv_usage_mean_{arm}", [run.usage_mean for run in runs]),
        **_spread(f"kv_usage_mean_queued_{arm}", [run.usage_mean_queued for run in runs]),
    }


def figures(measured: Measured) -> dict[str, Figure]:
    """All figures. Preemptions with admission on are totals of all rounds, without it the median.

    Raises ValueError without pairs.
    """
    if not measured.on:
        raise ValueError("no rounds")
    served = [one for run in measured.on for one in run.served]
    typical = sum(one.blocks for one in served) / len(served)
    pairs = zip(measured.on, measured.off, strict=True)
    result: dict[str, Figure] = {
        "pairs": len(measured.on),
        "requests": len(measured.on[0].served),
        "pool_blocks": POOL_BLOCKS,
        "block_tokens": BLOCK_TOKENS,
        "typical_request_blocks": typical,
        "pool_in_typical_requests": POOL_BLOCKS / typical,
        "preemptions_on": sum(run.preemptions for run in measured.on),
        "preemptions_on_cold": sum(r.preemptions for r in measured.cold) if measured.cold else None,
        "rounds_cold": len(measured.cold),
        **_spread("preemptions_off", [run.preemptions for run in measured.off]),
        **_spread("makespan_ratio", [on.makespan_s / off.makespan_s for on, off in pairs]),
        "order_violations": sum(order_violations(run) for run in measured.on),
        "order_violations_of_bands": sum(order_violations(r, of_bands=True) for r in measured.on),
        "order_dispatches": sum(one.asked.band is not None for one in served),
    }
    for arm in ("on", "off", "cold"):
        result |= _arm_figures(arm, getattr(measured, arm))
    for band in BANDS:
        found = waits(measured.on, band)
        result[f"wait_p50_{band}_s"] = quantile(found, 0.5)
        result[f"wait_p95_{band}_s"] = quantile(found, 0.95)
        result[f"wait_mean_{band}_s"] = sum(found) / len(found) if found else None
    return result | _loop_figures(measured)


def _loop_figures(measured: Measured) -> dict[str, Figure]:
    """Fairness in the closed loop, and the widest gap in a round of the crowd."""
    loop, fair = measured.loop, fairness(measured.loop)
    crowds = [found for run in measured.on if (found := fairness(run)) is not None]
    return {
        "loop_preemptions": loop.preemptions,
        "loop_preempted_share": loop.preemptions / len(loop.served),
        "loop_lost": loop.lost,
        "loop_answers_per_s": len(loop.served) / loop.makespan_s,
        "loop_kv_usage_mean": loop.usage_mean,
        "fairness_share_heavy": fair.gold_share if fair else None,
        "fairness_share_heavy_expected": WEIGHTS[GOLD] / sum(WEIGHTS.values()),
        "fairness_dispatches": fair.dispatches if fair else 0,
        "fairness_gap_area": fair.gap_area if fair else None,
        "fairness_largest_area": fair.largest_area if fair else None,
        "crowd_share_heavy": median([f.gold_share for f in crowds]) if crowds else None,
        "crowd_gap_area_max": max((f.gap_area for f in crowds), default=None),
    }


def wanted(found: Mapping[str, Figure]) -> dict[str, bool]:
    """What is wanted of admission, and whether these figures show it."""

    def number(name: str) -> float:
        value = found[name]
        return float("nan") if value is None else float(value)

    off_share = abs(number("fairness_share_heavy") - number("fairness_share_heavy_expected"))
    return {
        "nothing lost with admission": found["lost_on"] == found["loop_lost"] == 0,
        "no engine preemption with admission": found["preemptions_on"] == 0,
        "at most 1 % preempted where work always waits": number("loop_preempted_share")
        <= PREEMPTED_TARGET,
        "the same load preempts without admission": number("preemptions_off_min") > 0,
        "nobody goes before one who is due and fits": found["order_violations"] == 0,
        "band high waits less than band low": number("wait_mean_high_s")
        < number("wait_mean_low_s"),
        "KV area of two backlogged tenants as their weights": off_share <= SHARE_TOLERANCE,
    }
