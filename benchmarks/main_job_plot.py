"""The main job's result as a plot of four panels. Measures nothing."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from benchmarks.main_job_figures import SIDES, Pair, areas, by_items
from benchmarks.report import quantile

COLOURS = {"direct": "#c8693a", "governed": "#2a6f97"}
NAMES = {"direct": "directly", "governed": "through Governor"}
WIDTH = 0.38


def plot(path: Path, pairs: Sequence[Pair], title: str) -> None:
    """Accuracy and thinking by items, KV area, latency; the format follows the file's ending."""
    canvas = Figure(figsize=(11, 7.8), layout="constrained")
    canvas.suptitle(title, fontsize=11)
    handles = [Patch(color=COLOURS[side], label=NAMES[side]) for side in SIDES]
    canvas.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    panels = canvas.subplots(2, 2)
    for axes, draw in zip(panels.flat, (_accuracy, _thinking, _area, _latency), strict=True):
        draw(axes, pairs)
        axes.title.set_fontsize(10.5)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
        axes.set_axisbelow(True)
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path, dpi=120)


def _bars(axes: Axes, pairs: Sequence[Pair], side: str, heights: Sequence[float]) -> None:
    shift = -WIDTH / 2 if side == "direct" else WIDTH / 2
    at = np.arange(len(heights)) + shift
    axes.bar(at, heights, WIDTH, color=COLOURS[side])


def _items_axis(axes: Axes, pairs: Sequence[Pair]) -> None:
    groups = by_items(pairs)
    labels = [f"{k}\n∞" if group[0].problem.endless else f"{k}" for k, group in groups.items()]
    axes.set_xticks(range(len(groups)), labels)
    axes.set_xlabel("items in the problem (∞: greedy decoding checks for ever)")


def _accuracy(axes: Axes, pairs: Sequence[Pair]) -> None:
    groups = by_items(pairs).values()
    for side in SIDES:
        found = [fmean(pair.right(side) for pair in group) for group in groups]
        _bars(axes, pairs, side, found)
        for index, value in enumerate(found):
            if value == 0:
                shift = -WIDTH / 2 if side == "direct" else WIDTH / 2
                axes.text(index + shift, 0.01, "0", ha="center", color=COLOURS[side], fontsize=9)
    _items_axis(axes, pairs)
    axes.set_ylim(0, 1.05)
    axes.set_title("right answers, share")


def _thinking(axes: Axes, pairs: Sequence[Pair]) -> None:
    for side in SIDES:
        middle: list[float] = []
        above: list[float] = []
        for group in by_items(pairs).values():
            found = [pair.side(side).thinking_tokens for pair in group]
            tokens = [t for t in found if t is not None]
            middle.append(quantile(tokens, 0.5) or 0.0)
            above.append((quantile(tokens, 0.9) or 0.0) - middle[-1])
        _bars(axes, pairs, side, middle)
        at = np.arange(len(middle)) + (-WIDTH / 2 if side == "direct" else WIDTH / 2)
        axes.errorbar(
            at, middle, np.array([np.zeros(len(above)), above]), fmt="none", ecolor="#333", lw=1
        )
    _items_axis(axes, pairs)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_ylim(bottom=5)
    axes.set_title("thinking tokens: median, line to the 0.9 quantile (log scale)")


def _area(axes: Axes, pairs: Sequence[Pair]) -> None:
    whole = [p for p in pairs if p.direct.usage is not None and p.governed.usage is not None]
    endless = np.asarray([pair.problem.endless for pair in whole])
    totals = [areas(whole, side).sum() / 1e6 for side in SIDES]
    for index, side in enumerate(SIDES):
        found = areas(whole, side) / 1e6
        ending, looping = found[~endless].sum(), found[endless].sum()
        axes.bar(index, ending, 0.55, color=COLOURS[side])
        axes.bar(index, looping, 0.55, bottom=ending, color=COLOURS[side], alpha=0.5, hatch="//")
        text = f"{totals[index]:.2f}"
        if index:
            text += f"\n{totals[1] / totals[0]:.1%} of directly"
        axes.text(index, totals[index], text, ha="center", va="bottom")
    axes.set_xticks(range(2), [NAMES[side] for side in SIDES])
    axes.set_xlim(-0.6, 1.6)
    axes.set_ylim(0, max(totals) * 1.12)
    axes.set_title("KV area of all requests, million token² (hatched: endless problems)")


def _latency(axes: Axes, pairs: Sequence[Pair]) -> None:
    for side in SIDES:
        found = sorted(pair.side(side).latency_s for pair in pairs)
        shares = np.arange(1, len(found) + 1) / len(found)
        axes.step(found, shares, where="post", color=COLOURS[side], lw=2)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("seconds from request to the stream's end (log scale)")
    axes.set_title("latency: share of requests that have ended")
