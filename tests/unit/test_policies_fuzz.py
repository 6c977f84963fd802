"""Whatever stands in a policy file, it is a policy or it is refused with faults. Nothing else."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from governor.adapters.policies_fields import LEAVES
from governor.adapters.policies_yaml import MOST_BYTES, load_policy
from governor.adapters.policy_problem import PolicyFileInvalid, Problem


def faults(text: str | bytes) -> tuple[Problem, ...]:
    with pytest.raises(PolicyFileInvalid) as caught:
        load_policy(text)
    return caught.value.faults


def assert_told(found: tuple[Problem, ...]) -> None:
    assert found
    assert all(problem.message and problem.message in str(problem) for problem in found)


@pytest.mark.parametrize(
    "text",
    [
        "tenants: &a\n  t: *a\n",
        "tenants:\n  t:\n    keys: &k [*k]\n",
        "tenants: " + "[" * 5_000,
        "tenants: " + "{a: " * 5_000,
        "- " * 5_000 + "a",
        "\x00",
        b"\xff\xfe\x00",
        b"tenants: \xc3\x28",
        "\ud800",
        "--- a\n--- b\n",
        "? [a, b]\n: c\ntenants: {a: {}}",
        "tenants: !!python/object:os.system {a: b}",
    ],
    ids=range(12),
)  # fmt: skip
def test_hostile_files_are_refused_like_any_other(text: str | bytes) -> None:
    assert faults(text)


def test_an_endless_file_is_refused_unread() -> None:
    assert "bytes" in faults(b"#" * (MOST_BYTES + 1))[0].message


WORDS = st.sampled_from(
    [
        *(part for leaf in LEAVES for part in leaf.path.split(".")),
        *("tenants", "defaults", "keys", "models", "priorities", "apiVersion", "hash", "not_after"),
        *("governor.dev/v1", "governor.dev/v1alpha1", "thinking_budget", "a", "4k", "25%", "off"),
    ]
)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | WORDS
    | st.dates() | st.binary(max_size=4)
)  # fmt: skip
TREES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(WORDS | st.text(max_size=4) | st.integers(), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(TREES, TREES)
def test_any_tree_is_a_policy_or_refused_with_places(first: object, second: object) -> None:
    tree = {"apiVersion": "governor.dev/v1", "defaults": first, "tenants": {"a": second}}
    for value in (tree, first, {**tree, "tenants": second}):
        try:
            loaded = load_policy(yaml.safe_dump(value, allow_unicode=True))
        except PolicyFileInvalid as caught:
            faults = caught.faults
            assert_told(faults)
        else:
            assert loaded.policy.tenants


@settings(max_examples=300, deadline=None)
@given(st.text() | st.binary())
def test_any_text_is_a_policy_or_refused(text: str | bytes) -> None:
    try:
        faults = load_policy(text).policy.tenants
    except PolicyFileInvalid as caught:
        faults = caught.problems
    assert faults


def test_a_policy_file_is_never_read_from_elsewhere(tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("budget: 1", encoding="utf-8")
    assert faults(f"tenants:\n  a: !include {other}\n")
