"""Families: which served names think, and how they end it."""

import pytest

from governor.core.families import FAMILIES, family_of


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("tiny-reasoner", "tiny-reasoner"),
        ("org/Tiny_Reasoner-v2", "tiny-reasoner"),
        ("Qwen/Qwen3-8B", "qwen3"),
        ("qwen/QwQ-32B", "qwen3"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-r1"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "deepseek-r1"),
        ("deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", "deepseek-r1"),
    ],
)
def test_a_served_name_finds_its_family(model: str, family: str) -> None:
    found = family_of(model)
    assert found is not None
    assert found.name == family


@pytest.mark.parametrize("model", ["", "gpt-4o", "llama-3.1-8b-instruct", "qwen2.5-7b"])
def test_other_models_are_relayed_and_never_landed(model: str) -> None:
    assert family_of(model) is None


def test_an_alias_names_the_family_of_a_served_name() -> None:
    aliases = (("prod", "qwen3"), ("qwen3-plain", "none"))
    found = family_of("prod", aliases)
    assert found is not None
    assert found.name == "qwen3"
    assert family_of("prod") is None
    assert family_of("qwen3-plain", aliases) is None, "an alias wins over the patterns"


def test_every_wrap_up_ends_thinking_and_every_figure_has_a_source() -> None:
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    for family in FAMILIES:
        assert family.wrap_up_text.strip().endswith(family.think_end)
        assert family.think_start != family.think_end
        assert family.source
        assert all(pattern == pattern.lower() for pattern in family.patterns)
