"""Forced landings as a plot: accuracy beside no thinking, thinking against its cap."""

from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from benchmarks.landing_cases import Outcome, Path, Place
from benchmarks.landing_figures import groups
from benchmarks.report import Figure

SERIES = (
    ("accuracy_no_thinking", "no thinking", "#9aa5b1"),
    ("accuracy_landed", "landed by force", "#2a6f97"),
)
COLOURS = {0: "#c8693a", 16: "#2a6f97"}
NAMES = {0: "in mid-line (grace 0)", 16: "at the end of a line (grace 16)"}


def plot(target: FilePath, outcomes: Sequence[Outcome], result: Mapping[str, Figure]) -> None:
    """Writes the plot; the format follows the file's ending."""
    forced = [outcome for outcome in outcomes if outcome.forced]
    canvas = Canvas(figsize=(11.5, 5), layout="constrained")
    canvas.suptitle(f"{len(forced)} forced landings", fontsize=11)
    left, right = canvas.subplots(1, 2)
    _accuracies(left, sorted(groups(forced), key=_order), result)
    _caps(right, forced)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)
    target.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(target, dpi=120)


def _order(name: str) -> tuple[int, int, str]:
    if name.startswith("interval_"):
        return 0, int(name.removeprefix("interval_")), name
    if name in set(Path):
        return 1, 0, name
    return (2 if name.startswith("grace_") else 3), 0, name


def _accuracies(axes: Axes, names: Sequence[str], result: Mapping[str, Figure]) -> None:
    suffixes = ["", *(f"_{name}" for name in names)]
    for offset, (series, label, colour) in enumerate(SERIES):
        places = np.arange(len(suffixes)) - 0.2 + 0.4 * offset
        values, low, high = (
            np.array([float(result[f"{series}{suffix}{end}"] or 0) for suffix in suffixes])
            for end in ("", "_low", "_high")
        )
        spread = np.clip([values - low, high - values], 0, None)
        axes.barh(places, values, 0.38, xerr=spread, label=label, color=colour, capsize=2)
    counts = [int(result[f"forced_landings{suffix}"] or 0) for suffix in suffixes]
    labels = [
        "all",
        *(name.replace("_", " ").replace("interval", "tokens a chunk:") for name in names),
    ]
    axes.set_yticks(
        np.arange(len(suffixes)),
        [f"{label} ({count})" for label, count in zip(labels, counts, strict=True)],
    )
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.25)
    axes.set(xlim=(0, 1.02), xlabel="right answers on the same problems, 95 % intervals")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)


def _caps(axes: Axes, forced: Sequence[Outcome]) -> None:
    """Each budgeted landing: the cap against the thinking tokens, wrap-up included."""
    budgeted = [o for o in forced if o.case.budget_tokens and o.thinking_tokens is not None]
    most = max((o.case.budget_tokens or 0 for o in budgeted), default=1)
    axes.plot([0, most], [0, most], color="#555555", linewidth=1, label="the cap")
    for grace, colour in COLOURS.items():
        shown = [o for o in budgeted if o.case.draft.grace_tokens == grace]
        axes.scatter(
            [o.case.budget_tokens or 0 for o in shown],
            [o.thinking_tokens or 0 for o in shown],
            s=9,
            alpha=0.6,
            color=colour,
            label=f"landed {NAMES[grace]}",
        )
    behind = sum(o.place is Place.BEHIND for o in budgeted)
    axes.set_title(f"{len(budgeted)} by budget, {behind} of them behind a candidate", fontsize=10)
    axes.set(xlabel="budget N of the client", ylabel="thinking tokens, wrap-up included")
    axes.grid(alpha=0.25)
    axes.legend(loc="upper left", frameon=False)
