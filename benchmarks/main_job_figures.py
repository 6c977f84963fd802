"""The main job's figures from pairs of replies, directly and through Governor. Pure; no I/O."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from benchmarks.client import Reply
from benchmarks.problems import WhyWrong, answered, resumed_thinking, right, why_wrong
from benchmarks.report import Figure, bootstrap, quantile, wilson
from governor.core.outcomes import WrapUpReason
from governor_probes.tiny_reasoner.task import Problem

SIDES = ("direct", "governed")


@dataclass(frozen=True, slots=True)
class Pair:
    """One problem, asked directly and through Governor."""

    problem: Problem
    direct: Reply
    governed: Reply

    def side(self, name: str) -> Reply:
        """`direct` or `governed`."""
        return self.direct if name == "direct" else self.governed

    def right(self, name: str) -> bool:
        """Whether this side's answer is right."""
        return right(self.problem, self.side(name))

    @property
    def lost(self) -> bool:
        """Right before, wrong after."""
        return self.right("direct") and not self.right("governed")

    @property
    def gained(self) -> bool:
        """Wrong before, right after."""
        return self.right("governed") and not self.right("direct")

    @property
    def looped(self) -> bool:
        """Without Governor this problem hit the cap or its thinking never ended."""
        unended = self.direct.error is None and not answered(self.direct)
        return self.direct.finish_reason == "length" or unended

    @property
    def landed_with_answer(self) -> bool:
        """Governor ended the thinking, and an answer came."""
        return self.governed.landed is not None and answered(self.governed)


def share(pairs: Sequence[Pair], holds: Callable[[Pair], bool]) -> float | None:
    """Share of the pairs for which it holds; None of nothing."""
    return fmean(holds(pair) for pair in pairs) if pairs else None


def areas(pairs: Sequence[Pair], side: str) -> NDArray[np.float64]:
    """KV area per pair in token². Raises ValueError where a reply has no usage."""
    found = [pair.side(side).kv_area for pair in pairs]
    if missing := found.count(None):
        raise ValueError(f"{missing} {side} replies have no usage: the area is unknown")
    return np.asarray(found, dtype=np.float64)


def by_items(pairs: Sequence[Pair]) -> dict[int, list[Pair]]:
    """Pairs per number of items, in its order."""
    found: dict[int, list[Pair]] = {}
    for pair in sorted(pairs, key=lambda pair: pair.problem.items):
        found.setdefault(pair.problem.items, []).append(pair)
    return found


def figures(pairs: Sequence[Pair], seed: int) -> dict[str, Figure]:
    """All figures by name, flat. Raises ValueError without pairs or without usage."""
    if not pairs:
        raise ValueError("no pairs")
    whole = [p for p in pairs if p.direct.usage is not None and p.governed.usage is not None]
    return {
        "problems": len(pairs),
        **_accuracy(pairs, seed),
        **_area(whole, seed),
        **_landings(pairs),
        **_lengths(pairs),
        **_strata(pairs),
        "pairs_without_usage": len(pairs) - len(whole),
        "errors_direct": sum(pair.direct.error is not None for pair in pairs),
        "errors_governed": sum(pair.governed.error is not None for pair in pairs),
    }


def _mean(
    values: Sequence[float], pairs: Sequence[Pair], name: str, seed: int
) -> dict[str, Figure]:
    """The mean and its interval; the share of endless problems is part of the mix, not chance."""
    found = np.asarray(values, dtype=np.float64)
    endless = [pair.problem.endless for pair in pairs]
    low, high = bootstrap(len(found), lambda at: float(found[at].mean()), seed, strata=endless)
    return {name: float(found.mean()), f"{name}_low": low, f"{name}_high": high}


def _accuracy(pairs: Sequence[Pair], seed: int) -> dict[str, Figure]:
    lost = [pair.lost for pair in pairs]
    return {
        **_mean([pair.right("direct") for pair in pairs], pairs, "accuracy_direct", seed),
        **_mean([pair.right("governed") for pair in pairs], pairs, "accuracy_governed", seed),
        **_mean([pair.gained - pair.lost for pair in pairs], pairs, "accuracy_gain", seed),
        **_mean(lost, pairs, "lost_correct", seed),
        # No loss at all gives a bootstrap no width: the score interval's end is the honest bound.
        "lost_correct_wilson_high": wilson(sum(lost), len(pairs))[1],
        "gained_correct": share(pairs, lambda pair: pair.gained),
        "answered_share": share(pairs, lambda pair: answered(pair.governed)),
        "answered_share_direct": share(pairs, lambda pair: answered(pair.direct)),
    }


def _area(pairs: Sequence[Pair], seed: int) -> dict[str, Figure]:
    if not pairs:
        return {"kv_area_ratio": None}
    direct, governed = areas(pairs, "direct"), areas(pairs, "governed")

    def ratio(at: NDArray[np.intp]) -> float:
        return float(governed[at].sum() / direct[at].sum())

    endless = [pair.problem.endless for pair in pairs]
    low, high = bootstrap(len(pairs), ratio, seed, strata=endless)
    return {
        "kv_area_direct": int(direct.sum()),
        "kv_area_governed": int(governed.sum()),
        "kv_area_ratio": float(governed.sum() / direct.sum()),
        "kv_area_ratio_low": low,
        "kv_area_ratio_high": high,
    }


def _landings(pairs: Sequence[Pair]) -> dict[str, Figure]:
    looped = [pair for pair in pairs if pair.looped]
    endless = [pair for pair in pairs if pair.problem.endless]
    landed = Counter(pair.governed.landed for pair in pairs if pair.governed.landed)
    forced = [pair for pair in pairs if pair.governed.landed]
    wrong = Counter(why_wrong(pair.problem, pair.governed) for pair in pairs)
    return {
        "loops_direct": len(looped),
        "loops_landed_share": share(looped, lambda pair: pair.landed_with_answer),
        "loops_answered_share": share(looped, lambda pair: answered(pair.governed)),
        "endless_answered_share": share(endless, lambda pair: answered(pair.governed)),
        "endless_answered_share_direct": share(endless, lambda pair: answered(pair.direct)),
        "forced_landings": len(forced),
        "forced_landings_right": share(forced, lambda pair: pair.right("governed")),
        "empty_answers": sum(
            pair.governed.error is None and not answered(pair.governed) for pair in pairs
        ),
        "resumed_thinking": sum(resumed_thinking(pair.governed) for pair in pairs),
        **{f"landings_by_reason_{reason}": landed[reason.value] for reason in WrapUpReason},
        **{f"wrong_governed_{why}": wrong[why] for why in WhyWrong},
    }


def _lengths(pairs: Sequence[Pair]) -> dict[str, Figure]:
    found: dict[str, Figure] = {}
    for side in SIDES:
        replies = [pair.side(side) for pair in pairs]
        thinking = [r.thinking_tokens for r in replies if r.thinking_tokens is not None]
        latency = [reply.latency_s for reply in replies]
        ttft = [reply.ttft_s for reply in replies if reply.ttft_s is not None]
        found |= {
            f"thinking_tokens_p50_{side}": quantile(thinking, 0.5),
            f"thinking_tokens_p90_{side}": quantile(thinking, 0.9),
            f"thinking_tokens_total_{side}": sum(thinking),
            f"latency_p50_s_{side}": quantile(latency, 0.5),
            f"latency_p95_s_{side}": quantile(latency, 0.95),
            f"ttft_p50_s_{side}": quantile(ttft, 0.5),
        }
    return found


def _strata(pairs: Sequence[Pair]) -> dict[str, Figure]:
    found: dict[str, Figure] = {}
    for items, group in by_items(pairs).items():
        found[f"problems_k{items}"] = len(group)
        for side in SIDES:
            found[f"accuracy_{side}_k{items}"] = share(group, lambda pair, s=side: pair.right(s))
    return found


def wanted(found: Mapping[str, Figure]) -> dict[str, bool]:
    """What is wanted of the main job, and whether these figures show it."""

    def number(name: str) -> float:
        value = found[name]
        return float("nan") if value is None else float(value)

    return {
        "accuracy clearly up (interval of the gain above 0)": number("accuracy_gain_low") > 0,
        "lost_correct at most 0.5 %": number("lost_correct") <= 0.005,
        # None: nothing looped in this run.
        "every looping request answered": found["loops_answered_share"] in (1.0, None)
        and found["endless_answered_share"] == 1.0,
        "KV area at most half": number("kv_area_ratio") <= 0.5,
        "no empty answer": found["empty_answers"] == 0,
        "no thinking inside an answer": found["resumed_thinking"] == 0,
        "no request failed": found["errors_direct"] == 0 == found["errors_governed"],
    }
