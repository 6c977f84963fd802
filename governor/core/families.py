"""What is known of a model family: thinking tags and wrap-up texts. Data; token ids come from the
worker."""

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True)
class FamilyProfile:
    """One family. `patterns` are shell-style and matched against the lower-cased served model name.

    `wrap_up_text` ends thinking and includes the end tag. The default is the bare tag: longer
    phrases are not a free improvement (public A/B runs are contradictory), so a longer text stands
    here only where it was measured better, with its source in `source`.
    """

    name: str
    patterns: tuple[str, ...]
    think_start: str
    think_end: str
    wrap_up_text: str
    opens_in_prompt: bool
    source: str


FAMILIES: tuple[FamilyProfile, ...] = (
    FamilyProfile(
        "tiny-reasoner",
        ("*tiny-reasoner*", "*tiny_reasoner*"),
        "<think>",
        "</think>",
        "\n</think>\n\n",
        True,
        "model card of the shipped model: newline + tag answers in 0.96-1.00 of the cuts",
    ),
    # Before qwen3: a distilled model (DeepSeek-R1-0528-Qwen3-8B) has the teacher's template.
    FamilyProfile(
        "deepseek-r1",
        ("*deepseek-r1*", "*r1-distill*"),
        "<think>",
        "</think>",
        "\n</think>\n\n",
        True,
        "chat template of the model opens the block in the prompt",
    ),
    FamilyProfile(
        "qwen3",
        ("*qwen3*", "*qwq*"),
        "<think>",
        "</think>",
        "\n</think>\n\n",
        False,
        "llama.cpp issue 22162: a newline is needed before the tag",
    ),
)


def family_of(model: str, aliases: tuple[tuple[str, str], ...] = ()) -> FamilyProfile | None:
    """The family of a served model name; `aliases` maps exact served names to family names.

    None means that Governor admits and relays the model and never lands it.
    """
    wanted = dict(aliases).get(model)
    lowered = model.lower()
    for family in FAMILIES:
        if family.name == wanted:
            return family
        if wanted is None and any(fnmatchcase(lowered, pattern) for pattern in family.patterns):
            return family
    return None
