"""Fills the results in benchmarks/README.md from the files in benchmarks/results/.

    python -m benchmarks.results_table           rewrites the table
    python -m benchmarks.results_table --check   exits 1 where it is out of date

No figure is typed by hand. A benchmark without a file is shown as not measured.
"""

import argparse
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.report import ROOT, Figure

README = ROOT / "benchmarks" / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- generated: results -->\n", "<!-- end -->"
# The figures to show of each benchmark, as they are called in its file, in this order.
HEADLINES: Mapping[str, tuple[str, ...]] = {
    "main_job": (
        "problems",
        "accuracy_direct",
        "accuracy_governed",
        "lost_correct",
        "answered_share_direct",
        "answered_share",
        "kv_area_ratio",
        "thinking_tokens_total_direct",
        "thinking_tokens_total_governed",
        "loops_direct",
        "loops_landed_share",
        "loops_answered_share",
        "forced_landings",
        "empty_answers",
        "resumed_thinking",
        "latency_p50_s_direct",
        "latency_p50_s_governed",
        "latency_p95_s_direct",
        "latency_p95_s_governed",
    ),
    "landing": (
        "forced_landings",
        "empty_answers",
        "resumed_thinking",
        "accuracy_landed",
        "accuracy_no_thinking",
        "cap_exceeded_interval_1",
        "cap_exceeded_interval_3",
        "cap_exceeded_interval_20",
    ),
    "admission": (
        "preemptions_on",
        "preemptions_on_cold",
        "preemptions_off",
        "lost_on",
        "lost_off",
        "kv_usage_peak_on",
        "makespan_ratio",
        "fairness_gap_area",
        "fairness_share_heavy",
        "fairness_share_heavy_expected",
        "order_violations",
        "wait_p50_high_s",
        "wait_p50_low_s",
    ),
}
_SPREADS = (("_low", "_high"), ("_min", "_max"), ("_least", "_most"))


def number(value: Figure) -> str:
    """A figure as the table shows it: three significant digits below 1,000, whole above."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "none" if value is None else str(value)
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def spread(found: Mapping[str, Figure], name: str) -> str:
    """The interval or the range over rounds that stands beside a figure; empty without one."""
    for low, high in _SPREADS:
        if f"{name}{low}" in found and f"{name}{high}" in found:
            return f"{number(found[name + low])} to {number(found[name + high])}"
    return ""


def section(benchmark: str, found: Mapping[str, Figure] | None) -> str:
    """One benchmark: where its figures come from, and the figures.

    Raises ValueError for a `--quick` file, whose figures are no result.
    """
    title = f"### {benchmark}\n"
    if found is None:
        return f"{title}\nNot measured."
    if found.get("quick"):
        raise ValueError(f"{benchmark}: the figures of a --quick run are no result")
    changed = ", with uncommitted changes" if found.get("uncommitted_changes") else ""
    lines = [
        title,
        f"`{found.get('command')}`, {found.get('date')}, commit "
        f"`{str(found.get('commit'))[:12]}`{changed}, {found.get('machine_cpu')} with "
        f"{found.get('machine_cores')} cores, torch {found.get('version_torch')}, transformers "
        f"{found.get('version_transformers')}.",
        "",
        "| figure | value | interval or range |",
        "|---|---|---|",
    ]
    for name in HEADLINES.get(benchmark, ()):
        value = number(found[name]) if name in found else "not in the file"
        lines.append(f"| `{name}` | {value} | {spread(found, name)} |")
    return "\n".join(lines)


def results(folder: Path) -> str:
    """All sections. Raises ValueError for a file of `--quick` figures."""
    sections = []
    for benchmark in HEADLINES:
        file = folder / f"{benchmark}.json"
        found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
        sections.append(section(benchmark, found))
    return "\n\n".join(sections)


def rendered(text: str, folder: Path) -> str:
    """`text` with the results in their place. Raises ValueError unless there is exactly one."""
    place = re.compile(re.escape(BEGIN) + r".*?" + re.escape(END), re.DOTALL)
    if len(place.findall(text)) != 1:
        raise ValueError(f"need exactly one place that begins with {BEGIN.strip()}")
    block = f"{BEGIN}\n{results(folder)}\n\n{END}"
    return place.sub(lambda _: block, text)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.results_table")
    parser.add_argument("--check", action="store_true", help="only compare")
    check = parser.parse_args().check
    text = README.read_text(encoding="utf-8")
    current = rendered(text, RESULTS)
    if current == text:
        return 0
    if check:
        print("benchmarks/README.md is out of date: run python -m benchmarks.results_table")
        return 1
    README.write_text(current, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
