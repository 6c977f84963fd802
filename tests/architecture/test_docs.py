"""The documents agree with the code: generated parts are current, every enum value is explained."""

import re
from enum import Enum
from pathlib import Path
from types import ModuleType

import pytest

from docs.generate import PARTS, rendered, state_diagram, transition_table
from governor.core import lease, outcomes, scheduler, session

ROOT = Path(__file__).parent.parent.parent
GLOSSARY = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split("## Glossary")[1]
ENUMS = sorted(
    (
        value
        for module in (outcomes, lease)
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Enum)
        and value.__module__ == module.__name__
    ),
    key=lambda enum: enum.__name__,
)


@pytest.mark.parametrize("name", PARTS)
def test_generated_parts_are_current(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert rendered(text, PARTS[name]) == text, "run `make docs`"


def test_a_part_without_a_place_is_an_error() -> None:
    with pytest.raises(ValueError, match="exactly one place"):
        rendered("no markers", {"part": str})


@pytest.mark.parametrize("machine", [session, scheduler], ids=lambda module: module.__name__)
def test_diagram_and_table_show_every_transition(machine: ModuleType) -> None:
    transitions = machine.TRANSITIONS
    diagram, table = state_diagram(transitions), transition_table(transitions)
    for state, moves in transitions.items():
        for event, after in moves.items():
            target = r"\[\*\]" if after is None else after.value
            arrow = rf"^ +{state.value} --> {target}: .*\b{event.__name__}\b"
            assert re.search(arrow, diagram, re.MULTILINE)
        assert f"| {state.value} |" in table
    arrows = re.findall(r"-->.*: (.*)", diagram)
    assert sum(len(names.split(", ")) for names in arrows) == sum(map(len, transitions.values()))
    assert set(transitions) == set(type(next(iter(transitions))))


@pytest.mark.parametrize("enum", ENUMS, ids=lambda enum: enum.__name__)
def test_every_value_is_in_the_glossary(enum: type[Enum]) -> None:
    words = [m.name.lower() if isinstance(m.value, int) else m.value for m in enum]
    missing = [word for word in words if not re.search(rf"(?<![\w]){word}(?![\w])", GLOSSARY)]
    assert missing == []
