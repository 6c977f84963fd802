"""The main job's result as tables for a terminal. Measures nothing."""

import re
from collections.abc import Callable, Mapping, Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.main_job_figures import SIDES, Pair, areas, by_items, share, wanted
from benchmarks.problems import ENDING_ITEMS, answered, why_wrong
from benchmarks.report import Figure, quantile
from governor_probes.tiny_reasoner.task import candidates_of, clean_answer


def show(console: Console, pairs: Sequence[Pair], found: Mapping[str, Figure]) -> None:
    """Strata, totals, what is wanted, and every wrong answer through Governor."""
    console.print(strata_table(pairs))
    console.print(totals_table(found))
    for text, met in wanted(found).items():
        console.print(f"[{'green' if met else 'red'}]{'yes' if met else 'no':3}[/] {text}")
    wrong = [pair for pair in pairs if not pair.right("governed")]
    if wrong:
        console.print(wrong_table(wrong))


def strata_table(pairs: Sequence[Pair]) -> Table:
    """One row per number of items, and all; directly → through Governor in a cell.

    `tokens` is thinking; `lost` and `won` compare answers: right before, and right only after.
    """
    table = Table(
        title="by items: directly → through Governor",
        title_justify="left",
        box=SIMPLE,
        padding=0,
    )
    for name in ("items", "n", "right", "answered", "tokens\np50", "KV area\nM tok²",
                 "s\np50", "landed", "lost", "won"):  # fmt: skip
        table.add_column(name, justify="right", no_wrap=True)
    groups = by_items(pairs)
    for items, group in groups.items():
        endless = " ∞" if group[0].problem.endless else ""
        last = items == max(groups) or (items == max(ENDING_ITEMS))
        table.add_row(f"{items}{endless}", *_cells(group), end_section=last)
    table.add_row("all", *_cells(pairs), style="bold")
    return table


def _cells(group: Sequence[Pair]) -> list[str]:
    def both(form: str, of: Callable[[str], float | None]) -> str:
        found = [of(side) for side in SIDES]
        return "→".join("?" if value is None else form.format(value) for value in found)

    def thinking(side: str) -> float | None:
        tokens = [pair.side(side).thinking_tokens for pair in group]
        return quantile([t for t in tokens if t is not None], 0.5)

    whole = [p for p in group if p.direct.usage is not None and p.governed.usage is not None]
    return [
        str(len(group)),
        both("{:.2f}", lambda side: share(group, lambda pair: pair.right(side))),
        both("{:.2f}", lambda side: share(group, lambda pair: answered(pair.side(side)))),
        both("{:.0f}", thinking),
        both("{:.2f}", lambda side: areas(whole, side).sum() / 1e6),
        both("{:.1f}", lambda side: quantile([p.side(side).latency_s for p in group], 0.5)),
        str(sum(pair.governed.landed is not None for pair in group)),
        str(sum(pair.lost for pair in group)),
        str(sum(pair.gained for pair in group)),
    ]


def totals_table(found: Mapping[str, Figure]) -> Table:
    """Figures that are not of one stratum; reasons that did not occur are left out."""
    table = Table(title="figures", title_justify="left", box=SIMPLE)
    for name in ("", *SIDES):
        table.add_column(name, justify="right" if name else "left")
    # `…_direct` stands beside its `…_governed`, or beside the name without a side.
    direct = [name for name in found if "_direct" in name and not _of_a_stratum(name)]
    sides = {name: _other_side(name, found) for name in direct}
    for name, value in found.items():
        if name in sides:
            stem, other = name.replace("_direct", ""), sides[name]
            table.add_row(stem, _number(value), "" if other is None else _number(found[other]))
        elif name not in sides.values() and not _of_a_stratum(name) and not _nothing(name, value):
            table.add_row(name, "", _number(value))
    return table


def _other_side(name: str, found: Mapping[str, Figure]) -> str | None:
    names = (name.replace("_direct", "_governed"), name.replace("_direct", ""))
    return next((other for other in names if other in found), None)


def _of_a_stratum(name: str) -> bool:
    return re.search(r"_k\d+$", name) is not None


def _nothing(name: str, value: Figure) -> bool:
    return value == 0 and name.startswith(("landings_by_reason_", "wrong_governed_"))


def _number(value: Figure) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def wrong_table(wrong: Sequence[Pair]) -> Table:
    """Every wrong answer through Governor, with why."""
    table = Table(title="wrong through Governor", title_justify="left", box=SIMPLE, padding=0)
    for name in ("problem", "right", "directly", "Governor", "candidates", "thought", "landed",
                 "why"):  # fmt: skip
        table.add_column(name, overflow="fold")
    for pair in sorted(wrong, key=lambda pair: pair.problem.items):
        reply = pair.governed
        table.add_row(
            pair.problem.question,
            pair.problem.answer,
            clean_answer(pair.direct.content) or "none",
            clean_answer(reply.content) or "none",
            " ".join(candidates_of(reply.reasoning)) or "none",
            str(reply.thinking_tokens),
            reply.landed or "no",
            str(why_wrong(pair.problem, reply)),
        )
    return table
