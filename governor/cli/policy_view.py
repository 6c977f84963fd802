"""How policies and their faults look in a terminal and as JSON. Loads and decides nothing."""

import re
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from governor.adapters.policies_fields import LEAVES
from governor.adapters.policies_tenant import Stated, values_of
from governor.adapters.policy_problem import Problem
from governor.core.policy import TenantPolicy

# A key that somebody wrote into the file must not travel on into a log of CI.
_SECRET = re.compile(r"gk-[A-Za-z0-9_-]{4,}")


def console() -> Console:
    """A console on standard output that takes text as it is. One long line is not cut."""
    return Console(markup=False, highlight=False, soft_wrap=False)


def problem_json(problem: Problem) -> dict[str, Any]:
    """A fault as JSON; what is not known is null."""
    return {name: value if value != "" else None for name, value in asdict(problem).items()}


def problems_table(problems: Iterable[Problem], text: str, *, title: str) -> Table:
    """Faults or warnings, each with its line of the file and a mark under the place."""
    lines = text.splitlines()
    table = Table(title=Text(title), title_justify="left", show_lines=True, expand=True)
    table.add_column("line", justify="right", no_wrap=True)
    table.add_column("what is wrong", ratio=3, overflow="fold")
    table.add_column("allowed", ratio=2, overflow="fold")
    for problem in problems:
        what = Text(problem.path, style="bold")
        what.append(f"\n{problem.message}" if problem.path else problem.message, style="not bold")
        if problem.found is not None:
            what.append(f", found {problem.found}", style="not bold")
        parts: list[Text] = [what]
        source = source_line(problem, lines)
        if source is not None:
            parts.append(source)
        allowed = problem.allowed or ""
        if problem.nearest is not None:
            allowed += f"\ndid you mean {problem.nearest}?"
        table.add_row(str(problem.line or "-"), Group(*parts), Text(allowed.strip()))
    return table


def source_line(problem: Problem, lines: list[str]) -> Text | None:
    """The line of the file, a caret under the column. None where there is no line, or where the
    line may hold a caller's key."""
    if not 1 <= problem.line <= len(lines) or ".keys" in problem.path:
        return None
    line = lines[problem.line - 1]
    start = max(0, min(len(line) - len(line.lstrip()), problem.column - 1))
    shown = _SECRET.sub("gk-…", line[start:])
    return Text(f"  {shown}\n  {' ' * (problem.column - 1 - start)}^", style="dim", no_wrap=True)


def origin(stated: Stated, path: str) -> str:
    """Where the value at `path` comes from."""
    given = stated.get(path)
    if given is None:
        return "built in"
    head, _, rest = given.path.partition(".")
    kind = "defaults" if head == "defaults" else f"{head}.{rest.split('.')[0]}"
    for part in ("models", "priorities"):
        inside = f"{kind}.{part}."
        if given.path.startswith(inside):
            kind = given.path.removesuffix(f".{path}")
    return f"line {given.line} ({kind})"


def policy_rows(
    policy: TenantPolicy, stated: Stated, *, effective: bool
) -> list[tuple[str, str, str]]:
    """Path, value, origin: of every value, or only of those that the file states."""
    values = values_of(policy)
    return [
        (leaf.path, values[leaf.path], origin(stated, leaf.path))
        for leaf in LEAVES
        if effective or leaf.path in stated
    ]


def policy_table(rows: Iterable[tuple[str, str, str]], *, title: str) -> Table:
    """Values of a policy."""
    table = Table(title=Text(title), title_justify="left")
    table.add_column("key", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("from", overflow="fold")
    for path, value, where in rows:
        table.add_row(path, value, Text(where, style="dim" if where == "built in" else ""))
    return table
