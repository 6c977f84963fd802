"""Values of a policy file: units, ranges, and that what is shown can be written again."""

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from governor.adapters.policies_fields import LEAVES, Kind, Leaf
from governor.adapters.policies_values import (
    NULL,
    STRING,
    ValueRefused,
    allowed,
    read_value,
    shown,
)
from governor.core.outcomes import Mode, Priority

BY_PATH = {leaf.path: leaf for leaf in LEAVES}


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("budget.max", "0", 0),
        ("budget.max", "4k", 4_096),
        ("budget.max", "1.5k", 1_536),
        ("budget.max", "16_384", 16_384),
        ("budget.max", "unlimited", None),
        ("answer_reserve", "auto", None),
        ("deadline", "30", 30.0),
        ("deadline", "1.5s", 1.5),
        ("deadline", "5m", 300.0),
        ("deadline", "2h", 7_200.0),
        ("deadline", "1d", 86_400.0),
        ("queue.commit_after", "250ms", 0.25),
        ("quota.kv_area_per_minute", "2M", 2_000_000),
        ("quota.kv_area_per_minute", "1e9", 10**9),
        ("long_task_share", "25%", 0.25),
        ("long_task_share", "0.25", 0.25),
        ("mode_percent", "25%", 25.0),
        ("mode_percent", "25", 25.0),
        ("mode", "off", Mode.OFF),
        ("priority", "batch", Priority.BATCH),
    ],
)
def test_units_are_read(path: str, text: str, value: object) -> None:
    assert read_value(BY_PATH[path], text, STRING) == value


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("budget.max", "-1"),
        ("budget.max", "1.5"),
        ("budget.max", "010"),
        ("budget.max", "0x10"),
        ("budget.max", "1:30"),
        ("budget.max", "2M"),
        ("budget.max", "4kb"),
        ("budget.max", "many"),
        ("budget.max", ".inf"),
        ("budget.max", ".nan"),
        ("budget.max", "1e999"),
        ("budget.max", "9" * 50),
        ("deadline", "0"),
        ("long_task_share", "25"),
        ("long_task_share", "101%"),
        ("mode_percent", "101"),
        ("weight", "0"),
        ("loops.min_repeats", "2"),
        ("mode", "ENFORCE"),
        ("priority", "2"),
    ],
)
def test_values_out_of_range_or_form_are_refused(path: str, text: str) -> None:
    with pytest.raises(ValueRefused):
        read_value(BY_PATH[path], text, STRING)


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf.path)
def test_what_is_shown_can_be_written(leaf: Leaf) -> None:
    default = leaf.default
    if leaf.kind in (Kind.PATTERNS, Kind.NAMES):
        assert yaml.safe_load(shown(leaf, default)) == list(default)
        return
    text = shown(leaf, default)
    tag = {"null": NULL, "true": "bool", "false": "bool"}.get(text, STRING)
    assert read_value(leaf, text, tag) == default
    assert allowed(leaf)


@settings(deadline=None)
@given(st.text(alphabet="0123456789.eEkKMm%-+_ s", max_size=45), st.sampled_from(LEAVES))
def test_any_number_is_in_range_or_refused(text: str, leaf: Leaf) -> None:
    if leaf.kind in (Kind.PATTERNS, Kind.NAMES, Kind.CHOICE, Kind.SWITCH, Kind.TEXT):
        return
    try:
        value = read_value(leaf, text, STRING)
    except ValueRefused:
        return
    assert isinstance(value, int | float)
    assert leaf.minimum <= value <= leaf.maximum
