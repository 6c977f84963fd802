"""Every dialect in which a client may speak of thinking, read into one form and taken out again.

Numbers stay numbers: a numeric budget is never turned into an effort word. Nothing here decides
what is granted. Sources: the request schemas of vLLM, SGLang, llama.cpp, Dynamo/NIM and the public
API references of OpenAI, OpenRouter, Anthropic, Gemini, Qwen (DashScope) and Cohere.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from governor.core.demand import ThinkingAsk
from governor.core.errors import RequestInvalid
from governor.core.outcomes import Strictness
from governor.core.units import us_from_s
from governor.gateway import fields
from governor.gateway.fields import MOST_SECONDS, Path, at, name_of

TEMPLATE = "chat_template_kwargs"
GOVERNOR_FIELDS = frozenset(
    {
        "budget_tokens",
        "budget_s",
        "min_tokens",
        "answer_reserve",
        "strictness",
        "deadline_s",
        "explain",
    }
)

# (member, dialect, least value). -1 asks for no limit where the dialect defines it so.
BUDGETS: tuple[tuple[Path, str, int], ...] = (
    (("governor", "budget_tokens"), "governor", 0),
    (("thinking_token_budget",), "vllm", -1),
    (("thinking_budget",), "qwen", -1),
    ((TEMPLATE, "thinking_budget"), "qwen", -1),
    (("thinking", "budget_tokens"), "anthropic", 0),
    (("thinking", "token_budget"), "cohere", 0),
    (("reasoning", "max_tokens"), "openrouter", 0),
    (("thinkingConfig", "thinkingBudget"), "gemini", -1),
    (("generationConfig", "thinkingConfig", "thinkingBudget"), "gemini", -1),
    (("thinking_budget_tokens",), "llama.cpp", -1),
    (("nvext", "max_thinking_tokens"), "nim", 0),
    (("custom_params", "thinking_budget"), "sglang", -1),
)
# The first that is present is the effort.
EFFORTS: tuple[tuple[Path, str], ...] = (
    (("reasoning_effort",), "openai"),
    (("reasoning", "effort"), "openai"),
    (("output_config", "effort"), "anthropic"),
    (("thinkingConfig", "thinkingLevel"), "gemini"),
    (("generationConfig", "thinkingConfig", "thinkingLevel"), "gemini"),
    ((TEMPLATE, "reasoning_effort"), "vllm"),
)
SWITCHES: tuple[tuple[Path, str], ...] = (
    (("enable_thinking",), "qwen"),
    ((TEMPLATE, "enable_thinking"), "qwen"),
    ((TEMPLATE, "thinking"), "qwen"),
    (("reasoning", "enabled"), "openrouter"),
)
_TYPES = ("enabled", "disabled", "adaptive")
# Members that speak of nothing but thinking. `reasoning_effort` inside the template's arguments
# stays there: a template reads it, no engine enforces it.
_OWN_MEMBERS: tuple[Path, ...] = (
    ("thinking_token_budget",),
    ("thinking_budget",),
    ("thinking_budget_tokens",),
    ("enable_thinking",),
    ("thinking",),
    ("reasoning",),
    ("reasoning_effort",),
    ("output_config", "effort"),
    ("thinkingConfig",),
    ("generationConfig", "thinkingConfig"),
    ("nvext", "max_thinking_tokens"),
    ("custom_params", "thinking_budget"),
    (TEMPLATE, "thinking_budget"),
    (TEMPLATE, "enable_thinking"),
    (TEMPLATE, "thinking"),
)


@dataclass(frozen=True, slots=True)
class Said:
    """What a body says of thinking. `switched` is its explicit on or off, None for neither."""

    ask: ThinkingAsk
    switched: bool | None
    notes: tuple[str, ...]


def read(body: Mapping[str, Any]) -> Said:
    """Read all dialects of `body`; the smallest number wins, off counts as 0.

    Raises RequestInvalid, naming the member.
    """
    _check_own(body)
    switched, off_by, notes = _switch(body)
    budget, budget_dialect, budget_notes = _budget(body, off_by)
    effort, effort_dialect, effort_notes = _effort(body)
    seconds = fields.number(body, ("governor", "budget_s"), 0, MOST_SECONDS)
    strictness = fields.choice(body, ("governor", "strictness"), tuple(Strictness))
    if fields.flag(body, ("reasoning", "exclude")):
        notes += ("reasoning.exclude is not applied: reasoning is returned",)
    ask = ThinkingAsk(
        effort=effort,
        budget_tokens=budget,
        budget_us=None if seconds is None else us_from_s(seconds),
        min_tokens=fields.integer(body, ("governor", "min_tokens"), 0),
        answer_reserve_tokens=fields.integer(body, ("governor", "answer_reserve"), 0),
        strictness=None if strictness is None else Strictness(strictness),
        dialect=budget_dialect or effort_dialect,
    )
    return Said(ask, switched, notes + budget_notes + effort_notes)


def without_thinking(body: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of `body` without any dialect's members; objects left empty go too. Shares the rest
    with `body`, which is not changed."""
    made = dict(body)
    for path in _OWN_MEMBERS:
        _remove(made, path)
    return made


def with_own_budgets(
    made: dict[str, Any], body: Mapping[str, Any], most_tokens: int | None
) -> None:
    """Put the client's own numeric budgets of `body` back into `made`, at most `most_tokens`.

    For a worker that no budget can be enforced on: its engine may still obey the member that the
    client chose, and a number is never lost on the way.
    """
    for path, _, _ in BUDGETS:
        if path[0] == "governor":
            continue
        value = fields.integer(body, path, -1)
        if value is not None and value >= 0:
            least = value if most_tokens is None else min(value, most_tokens)
            _put(made, body, path, least)


def _put(made: dict[str, Any], body: Mapping[str, Any], path: Path, value: int) -> None:
    """Set the member at `path`; objects on the way that are gone come back as the client sent
    them (`thinking.type` belongs to `thinking.budget_tokens`)."""
    for key in path[:-1]:
        sent = body.get(key) or {}
        inner = made.get(key, sent)
        made[key] = dict(inner) if isinstance(inner, dict) else {}
        made, body = made[key], sent
    made[path[-1]] = value


def _remove(made: dict[str, Any], path: Path) -> None:
    """Take the member at `path` out of `made`, copying the objects on the way."""
    key = path[0]
    if len(path) == 1:
        made.pop(key, None)
        return
    inner = made.get(key)
    if not isinstance(inner, dict) or path[1] not in inner:
        return
    made[key] = inner = dict(inner)
    _remove(inner, path[1:])
    if not inner:
        del made[key]


def _check_own(body: Mapping[str, Any]) -> None:
    """Our own object is strict: a misspelt member would fail silently."""
    own = fields.table(body, ("governor",)) or {}
    unknown = sorted(set(own) - GOVERNOR_FIELDS)
    if unknown:
        raise RequestInvalid(f"governor has no member {unknown[0]!r}", f"governor.{unknown[0]}")


def _switch(body: Mapping[str, Any]) -> tuple[bool | None, tuple[str, str] | None, tuple[str, ...]]:
    """On or off, which member (and dialect) said off, and notes. Off wins over on."""
    said: list[tuple[str, str, bool]] = []
    for path, dialect in SWITCHES:
        value = fields.flag(body, path)
        if value is not None:
            said.append((name_of(path), dialect, value))
    kind = fields.choice(body, ("thinking", "type"), _TYPES)
    if kind is not None:
        dialect = "cohere" if at(body, ("thinking", "token_budget")) is not None else "anthropic"
        said.append(("thinking.type", dialect, kind != "disabled"))
    off = [(name, dialect) for name, dialect, value in said if not value]
    if not said:
        return None, None, ()
    if not off:
        return True, None, ()
    if len(off) == len(said):
        return False, off[0], ()
    names = ", ".join(name for name, _, _ in said)
    return False, off[0], (f"thinking is both on and off ({names}): off applies",)


def _budget(
    body: Mapping[str, Any], off_by: tuple[str, str] | None
) -> tuple[int | None, str | None, tuple[str, ...]]:
    """The smallest budget, its dialect, and a note where members disagree."""
    said: list[tuple[int, str, str]] = []
    if off_by is not None:
        said.append((0, off_by[0], off_by[1]))
    unlimited = False
    for path, dialect, least in BUDGETS:
        value = fields.integer(body, path, least)
        if value is not None and value >= 0:
            said.append((value, name_of(path), dialect))
        unlimited = unlimited or value == -1
    if not said:
        return None, None, ()
    tokens, name, dialect = min(said, key=lambda found: found[0])
    if unlimited or any(value != tokens for value, _, _ in said):
        return tokens, dialect, (f"several thinking budgets: the smallest applies ({name})",)
    return tokens, dialect, ()


def _effort(body: Mapping[str, Any]) -> tuple[str | None, str | None, tuple[str, ...]]:
    """The effort word, its dialect, and a note where members disagree."""
    said: list[tuple[str, str, str]] = []
    for path, dialect in EFFORTS:
        word = fields.text(body, path)
        if word is not None:
            said.append((word.lower() if dialect == "gemini" else word, name_of(path), dialect))
    if not said:
        return None, None, ()
    word, name, dialect = said[0]
    if any(other != word for other, _, _ in said):
        return word, dialect, (f"several efforts: {name} applies",)
    return word, dialect, ()
