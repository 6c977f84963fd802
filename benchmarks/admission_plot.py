"""The admission benchmark as a plot: the pool over time, preemptions, waits, areas by tenant."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.admission_figures import Measured, Run, fairness, waits
from benchmarks.admission_load import BANDS, POOL_BLOCKS, WEIGHTS

COLOURS = {"on": "#2a6f97", "off": "#c8693a", "cold": "#7a9e3f"}
BAND_COLOURS = dict(zip(BANDS, ("#2a6f97", "#9aa5b1"), strict=True))


def plot(target: Path, measured: Measured) -> None:
    """Writes the plot; the format follows the file's ending."""
    canvas = Figure(figsize=(11.5, 7.4), layout="constrained")
    requests = len(measured.on[0].served)
    canvas.suptitle(
        f"{requests} requests at once on a KV pool of {POOL_BLOCKS} blocks", fontsize=11
    )
    grid = canvas.add_gridspec(2, 3)
    # The pair whose count of preemptions is the middle one.
    middle = int(np.argsort([run.preemptions for run in measured.off])[len(measured.off) // 2])
    top = canvas.add_subplot(grid[0, :])
    _usage(top, "off", measured.off[middle])
    _usage(top, "on", measured.on[middle])
    top.axhline(1, color="#555555", linewidth=0.8)
    top.set(xlabel="seconds", ylabel="KV pool in use, share", ylim=(0, 1.2), xlim=(0, None))
    top.set_title("one round of each; a cross: the engine has preempted", fontsize=10)
    top.legend(loc="upper right", frameon=False, ncols=2)
    _preemptions(canvas.add_subplot(grid[1, 0]), measured)
    _waits(canvas.add_subplot(grid[1, 1]), measured)
    _areas(canvas.add_subplot(grid[1, 2]), measured.loop)
    for axes in canvas.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        axes.set_axisbelow(True)
    target.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(target, dpi=120)


def _usage(axes: Axes, arm: str, run: Run) -> None:
    at = np.array([sample.at_s for sample in run.samples])
    usage = np.array([sample.kv_usage for sample in run.samples])
    label = f"admission {arm}: {run.preemptions} preemptions"
    axes.plot(at, usage, color=COLOURS[arm], linewidth=1.4, label=label)
    preempted = np.diff([sample.preemptions for sample in run.samples], prepend=0) > 0
    axes.scatter(at[preempted], usage[preempted], marker="x", s=30, color="#b00020", zorder=3)


def _preemptions(axes: Axes, measured: Measured) -> None:
    for at, (arm, runs) in enumerate(
        (("off", measured.off), ("on", measured.on), ("cold", measured.cold))
    ):
        counts = [run.preemptions for run in runs]
        places = at + np.linspace(-0.2, 0.2, len(counts)) if len(counts) > 1 else [at] * len(counts)
        axes.scatter(places, counts, color=COLOURS[arm], s=22)
    axes.set_xticks(range(3), ["off", "on", "on, cold"])
    axes.set(ylabel="preemptions", xlim=(-0.5, 2.5))
    axes.set_title("preemptions, a point for each round", fontsize=10)


def _waits(axes: Axes, measured: Measured) -> None:
    for band, colour in BAND_COLOURS.items():
        found = np.sort(waits(measured.on, band))
        share = np.arange(1, len(found) + 1) / max(1, len(found))
        axes.plot(found, share, color=colour, label=f"band {band}")
    axes.set(xlabel="seconds in the gateway's queue", ylabel="share of requests", ylim=(0, 1.02))
    axes.set_title("waits by priority band, admission on", fontsize=10)
    axes.legend(loc="lower right", frameon=False)


def _areas(axes: Axes, loop: Run) -> None:
    fair = fairness(loop)
    if fair is None:
        axes.set_title("the tenants never waited together", fontsize=10)
        return
    heavy, light = WEIGHTS
    gold, silver = np.array(fair.gold) / 1e6, np.array(fair.silver) / 1e6
    axes.plot(silver, gold, color="#2a6f97", linewidth=1.4, label="dispatched")
    ratio = WEIGHTS[heavy] / WEIGHTS[light]
    wanted = [0, ratio * silver[-1]]
    axes.plot(
        [0, silver[-1]], wanted, color="#555555", linewidth=0.9, label="as the weights, 2 : 1"
    )
    axes.set(xlabel=f"KV area of {light}, million token²", ylabel=f"of {heavy}, million token²")
    axes.set_title(f"both always waiting: {fair.gold_share:.2f} for {heavy}", fontsize=10)
    axes.legend(loc="upper left", frameon=False)
