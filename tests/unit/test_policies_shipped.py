"""What ships in policies/ loads and agrees with the schema; the generated files are current."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from governor.adapters.policies_fields import LEAVES
from governor.adapters.policies_schema import json_schema, reference, schema_text
from governor.adapters.policies_yaml import PolicyFileInvalid, load_policy
from governor.gateway.settings import default_policy_file

POLICIES = Path(__file__).parents[2] / "policies"
FILES = sorted([*POLICIES.glob("*.yaml"), *POLICIES.glob("examples/*.yaml")])


def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json_schema())


def test_the_schema_is_current_and_valid() -> None:
    committed = (POLICIES / "schema.json").read_text(encoding="utf-8")
    assert committed == schema_text(), "run: governor policy schema > policies/schema.json"
    jsonschema.Draft202012Validator.check_schema(json_schema())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_shipped_policy_loads_without_a_warning(file: Path) -> None:
    loaded = load_policy(file.read_bytes(), file.name)
    assert loaded.warnings == ()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_shipped_policy_agrees_with_the_schema(file: Path) -> None:
    assert list(validator().iter_errors(yaml.safe_load(file.read_bytes()))) == []


def test_the_examples_are_there() -> None:
    names = {file.stem for file in FILES}
    assert names >= {
        "default", "vllm-qwen3", "sglang-deepseek-r1", "gpt-oss", "litellm-in-front",
    }  # fmt: skip


def test_keys_in_examples_open_nothing() -> None:
    for file in FILES:
        for entry in load_policy(file.read_bytes()).policy.keys:
            assert entry.key_hash.startswith("sha256:" + "0" * 60)
            assert entry.not_after_s is None or datetime.fromtimestamp(entry.not_after_s, UTC)


def test_the_default_policy_serves_without_a_key_and_fits_the_shipped_model() -> None:
    policies = load_policy(default_policy_file().read_bytes()).policy
    caller = policies.caller(None, 0.0)
    assert caller.tenant == "default"
    policy = policies.tenant("default")
    assert policy is not None
    # Model card: every solvable problem has its answer in 400 tokens; 1,500 lose it.
    assert policy.default_budget_tokens == 400
    assert policy.max_budget_tokens is not None
    assert policy.max_budget_tokens <= 1_500
    assert policy.loops.enabled


REFUSED_BY_BOTH: list[dict[str, Any]] = [
    {},
    {"tenants": {}},
    {"tenants": {"a": {"budgett": 1}}},
    {"tenants": {"a": {"budget": {"max": -1}}}},
    {"tenants": {"a": {"budget": "4x"}}},
    {"tenants": {"a": {"mode": "on!"}}},
    {"tenants": {"a": {"models": ["q"]}}},
    {"tenants": {"a": {"models": {"q": {"quota": {"concurrent": 1}}}}}},
    {"tenants": {"a": {"priorities": {"soon": {}}}}},
    {"tenants": {"a": {"keys": ["gk-plain"]}}},
    {"tenants": {"a": {"allow_models": []}}},
    {"tenants": {"_a": {}}},
    {"defaults": {"keys": []}, "tenants": {"a": {}}},
    {"apiVersion": "governor.dev/v9", "tenants": {"a": {}}},
]


@pytest.mark.parametrize("tree", REFUSED_BY_BOTH, ids=range(len(REFUSED_BY_BOTH)))
def test_schema_and_loader_refuse_the_same(tree: dict[str, Any]) -> None:
    assert list(validator().iter_errors(tree))
    with pytest.raises(PolicyFileInvalid):
        load_policy(yaml.safe_dump(tree))


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf.path)
def test_the_reference_explains_every_key(leaf: Any) -> None:
    assert f"| `{leaf.path}` |" in reference()


def test_the_reference_is_current() -> None:
    text = (POLICIES / "README.md").read_text(encoding="utf-8")
    assert reference() in text, "run: make docs"
