"""Every contract of docs/contracts.md has golden JSON that the code still reads and writes."""

import json
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest

from governor.adapters import metric_names
from governor.core import dispatch
from governor.core.budget import BudgetGrant
from governor.core.draw import draw_for
from governor.core.forecast import Forecast
from governor.core.lease import Lease
from governor.core.plain import from_plain, to_plain
from governor.core.policy import TenantPolicy
from governor.core.record import DecisionRecord
from governor.core.signals import (
    decode_ack,
    decode_batch,
    decode_control,
    encode_ack,
    encode_batch,
    encode_control,
)

ROOT = Path(__file__).parent.parent.parent
GOLDEN = ROOT / "tests" / "data" / "contracts"
TEXT = (ROOT / "docs" / "contracts.md").read_text(encoding="utf-8")
ROWS = [line.split("|")[1:-1] for line in TEXT.splitlines() if line.startswith("| [(")]
NAMED = [name for row in ROWS for name in re.findall(r"`([a-z_]+\.json)`", row[-1])]


def _values(wanted: type[Any]) -> Callable[[Any], Any]:
    return lambda golden: to_plain(from_plain(wanted, golden))


def _type_name(kind: Any) -> str:
    return (
        kind.__name__
        if isinstance(kind, type) and not get_args(kind)
        else re.sub(r"\b(\w+\.)+", "", str(kind))
    )


def _messages(_: Any) -> Any:
    def listed(union: Any) -> dict[str, dict[str, str]]:
        return {
            kind.__name__: {field.name: _type_name(field.type) for field in fields(kind)}
            for kind in get_args(union)
        }

    return {
        "to_allocator": listed(dispatch.Event),
        "from_allocator": listed(dispatch.Action),
    }


def _metrics(_: Any) -> Any:
    return {
        metric.name: {"kind": metric.kind.value, "labels": list(metric.labels)}
        for metric in metric_names.ALL
    }


# Reads a golden value with the code of today and writes it again.
AGAIN: dict[str, Callable[[Any], Any]] = {
    "signals.json": lambda golden: encode_batch(decode_batch(golden)),
    "control.json": lambda golden: [encode_control(decode_control(item)) for item in golden],
    "control_ack.json": lambda golden: [encode_ack(decode_ack(item)) for item in golden],
    "decision_record.json": _values(DecisionRecord),
    "draws.json": lambda golden: [[*row[:3], draw_for(*row[:3])] for row in golden],
    "lease.json": _values(Lease),
    "forecast.json": _values(Forecast),
    "grant.json": _values(BudgetGrant),
    "policy.json": _values(TenantPolicy),
    "scheduler_messages.json": _messages,
    "metric_names.json": _metrics,
}


def _holds(now: Any, golden: Any) -> bool:
    """Whether all of `golden` is in `now`; members and message fields may have been added."""
    if isinstance(golden, dict):
        return isinstance(now, dict) and all(
            key in now and _holds(now[key], value) for key, value in golden.items()
        )
    if isinstance(golden, list) and golden and all(isinstance(item, dict) for item in golden):
        return len(now) == len(golden) and all(map(_holds, now, golden))
    return bool(now == golden)


def test_every_contract_names_its_golden_files() -> None:
    letters = [re.findall(r"\(([a-g])\)", row[0])[0] for row in ROWS]
    assert letters == list("abcdefg")
    assert sorted(NAMED) == sorted(AGAIN)
    assert {file.name for file in GOLDEN.glob("*.json")} == set(NAMED)


@pytest.mark.parametrize("name", AGAIN)
def test_golden_values_still_decode(name: str) -> None:
    golden = json.loads((GOLDEN / name).read_text(encoding="utf-8"))
    assert golden
    assert _holds(AGAIN[name](golden), golden)


def test_a_removed_member_would_be_noticed() -> None:
    assert not _holds({"a": 1}, {"a": 1, "b": None})
    assert not _holds([{"a": 1}], [{"a": 2}])
    assert _holds({"a": 1, "b": 2}, {"a": 1})
