"""The guide's policies are policies: each YAML block of docs/policies.md loads as it stands."""

import re
from pathlib import Path

import pytest

from governor.adapters.policies_migrate import ALPHA_RENAMED
from governor.adapters.policies_yaml import load_policy

GUIDE = (Path(__file__).parents[2] / "docs" / "policies.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", GUIDE, flags=re.MULTILINE | re.DOTALL)


def test_the_guide_has_its_examples() -> None:
    assert len(BLOCKS) == 4


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_every_block_is_a_policy_without_warnings(block: str) -> None:
    assert load_policy(block).warnings == ()


def test_the_guide_lists_every_renamed_key() -> None:
    for old, (section, name) in ALPHA_RENAMED.items():
        assert f"| `{old}` | `{section}.{name}` |" in GUIDE
