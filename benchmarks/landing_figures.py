"""The figures of forced landings, and whether they meet the targets. Pure."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from benchmarks.landing_cases import Outcome
from benchmarks.report import Figure, bootstrap, wilson


def _share(name: str, hits: Sequence[bool]) -> dict[str, Figure]:
    """A share with its interval; null where nothing was counted."""
    if not hits:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    low, high = wilson(sum(hits), len(hits))
    return {name: sum(hits) / len(hits), f"{name}_low": low, f"{name}_high": high}


def groups(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """The forced landings by stream interval, path, grace, and where thinking ended."""
    found: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        for name in (
            f"interval_{outcome.stream_interval}",
            str(outcome.case.draft.path),
            f"grace_{outcome.case.draft.grace_tokens}",
            str(outcome.place),
        ):
            found.setdefault(name, []).append(outcome)
    return found


def figures(
    outcomes: Sequence[Outcome], no_thinking: Callable[[Outcome], bool], seed: int
) -> dict[str, Figure]:
    """All named figures. `no_thinking` says whether the problem came right without thinking.

    Landings that were not forced, because thinking had ended by itself, are counted and left out.
    """
    forced = [outcome for outcome in outcomes if outcome.forced]
    result: dict[str, Figure] = {
        "not_forced": len(outcomes) - len(forced),
        "errors": sum(outcome.error is not None for outcome in forced),
        "caps_counted_by_ids": sum(outcome.counted_tokens is not None for outcome in forced),
        **_counts("", forced),
        **_accuracies("", forced, no_thinking),
    }
    for name, members in sorted(groups(forced).items()):
        result |= _counts(f"_{name}", members) | _accuracies(f"_{name}", members, no_thinking)
    if forced:
        gains = np.array([float(o.right) - float(no_thinking(o)) for o in forced])
        low, high = bootstrap(len(gains), lambda drawn: float(gains[drawn].mean()), seed)
        result |= {"gain": float(gains.mean()), "gain_low": low, "gain_high": high}
    return result


def _counts(suffix: str, outcomes: Sequence[Outcome]) -> dict[str, Figure]:
    return {
        f"forced_landings{suffix}": len(outcomes),
        f"landings_confirmed{suffix}": sum(outcome.confirmed for outcome in outcomes),
        f"empty_answers{suffix}": sum(outcome.empty for outcome in outcomes),
        f"resumed_thinking{suffix}": sum(outcome.resumed_thinking for outcome in outcomes),
        f"cap_exceeded{suffix}": sum(outcome.cap_exceeded for outcome in outcomes),
    }


def _accuracies(
    suffix: str, outcomes: Sequence[Outcome], no_thinking: Callable[[Outcome], bool]
) -> dict[str, Figure]:
    return {
        **_share(f"accuracy_landed{suffix}", [outcome.right for outcome in outcomes]),
        **_share(f"accuracy_no_thinking{suffix}", [no_thinking(outcome) for outcome in outcomes]),
        **_share(f"answer_supported{suffix}", [outcome.supported for outcome in outcomes]),
    }


def targets(result: dict[str, Figure]) -> list[tuple[str, bool]]:
    """The targets of forced landings, each with whether these figures meet it."""
    count = int(result["forced_landings"] or 0)
    landed, without = result["accuracy_landed"], result["accuracy_no_thinking"]
    better = isinstance(landed, float) and isinstance(without, float) and landed >= without
    answered = f"{count - int(result['empty_answers'] or 0)} of {count} answers are not empty"
    return [
        (answered, count > 0 and result["empty_answers"] == 0),
        ("all landings confirmed by the gateway", result["landings_confirmed"] == count),
        (f"accuracy {landed} at least {without} without thinking", better),
        ("thinking never continues in the answer", result["resumed_thinking"] == 0),
        ("no cap is exceeded", result["cap_exceeded"] == 0),
    ]
