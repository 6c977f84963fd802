"""Rewrites the generated parts of documents: `python docs/generate.py`; `--check` only compares.

A generated part stands between `<!-- generated: NAME -->` and `<!-- end -->`. Each is made from
the code that it describes, so that it cannot disagree with it; a test keeps the files current.
"""

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from governor.adapters import policies_schema  # noqa: E402
from governor.core import scheduler, session  # noqa: E402

# Rows are states, columns events; None ends the machine's life.
Transitions: TypeAlias = Mapping[Any, Mapping[type, Any]]


def state_diagram(transitions: Transitions) -> str:
    """A transition table as a Mermaid diagram, one arrow per pair of states; the first row starts.

    A state without moves, and an event without a state after it, end the life.
    """
    first = next(iter(transitions))
    lines = ["```mermaid", "stateDiagram-v2", "    direction LR", f"    [*] --> {first.value}"]
    for state, moves in transitions.items():
        events: dict[Any, list[str]] = {}
        for event, after in moves.items():
            events.setdefault(after, []).append(event.__name__)
        for after, names in events.items():
            target = "[*]" if after is None else after.value
            lines.append(f"    {state.value} --> {target}: {', '.join(names)}")
        if not moves:
            lines.append(f"    {state.value} --> [*]")
    return "\n".join([*lines, "```"])


def transition_table(transitions: Transitions) -> str:
    """The same table in words: rows are states, columns events, cells the state after."""
    events: dict[str, type] = {}
    for moves in transitions.values():
        events.update({event.__name__: event for event in moves})
    lines = [f"| state | {' | '.join(f'`{name}`' for name in events)} |"]
    lines.append("|" + "---|" * (len(events) + 1))
    for state, moves in transitions.items():
        cells = []
        for event in events.values():
            after = moves.get(event, "illegal")
            cells.append("ended" if after is None else getattr(after, "value", after))
        lines.append(f"| {state.value} | {' | '.join(cells)} |")
    return "\n".join(lines)


PARTS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "docs/architecture.md": {
        "session diagram": lambda: state_diagram(session.TRANSITIONS),
        "session table": lambda: transition_table(session.TRANSITIONS),
        "request diagram": lambda: state_diagram(scheduler.TRANSITIONS),
    },
    "policies/README.md": {"policy keys": policies_schema.reference},
}


def rendered(text: str, parts: Mapping[str, Callable[[], str]]) -> str:
    """`text` with every generated part made afresh. Raises ValueError where a part has no place."""
    for name, make in parts.items():
        begin, end = f"<!-- generated: {name} -->\n", "<!-- end -->"
        pattern = re.compile(re.escape(begin) + r".*?" + re.escape(end), re.DOTALL)
        if len(pattern.findall(text)) != 1:
            raise ValueError(f"need exactly one place for the generated part {name!r}")
        block = f"{begin}{make()}\n{end}"
        text = pattern.sub(lambda _, block=block: block, text)
    return text


def main() -> int:
    """Command line. With `--check` writes nothing and exits 1 where a file is out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = []
    for name, parts in PARTS.items():
        file = ROOT / name
        text = file.read_text(encoding="utf-8")
        current = rendered(text, parts)
        if current != text:
            stale.append(name)
            if not check:
                file.write_text(current, encoding="utf-8")
    if stale:
        print(("out of date: " if check else "rewritten: ") + ", ".join(stale))
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
