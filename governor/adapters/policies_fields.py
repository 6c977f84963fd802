"""The keys of a policy file, as one table: the loader, the JSON Schema and the reference are made
from it. Reads nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum

from governor.core.outcomes import Mode, Priority, ReasoningField, Strictness
from governor.core.policy import DEFAULT_EFFORT_TOKENS, GovernorBlock, TenantPolicy

# More than any model of today can think (1 Mi tokens of context); it catches slips of the finger.
_MOST_TOKENS = 1_048_576
_MOST_AREA = 10**18


class Kind(StrEnum):
    """How a value is written."""

    TOKENS = "tokens"
    COUNT = "count"
    AREA = "area"
    SECONDS = "duration"
    SHARE = "share"
    PERCENT = "percent"
    NUMBER = "number"
    SWITCH = "true or false"
    CHOICE = "choice"
    TEXT = "text"
    PATTERNS = "list of patterns"
    NAMES = "list of names"


class Scope(StrEnum):
    """Where a policy stands in the file."""

    DEFAULTS = "defaults"
    TENANT = "tenant"
    MODEL = "model override"
    BAND = "priority override"


@dataclass(frozen=True, slots=True)
class Leaf:
    """One value of a policy. `attribute` is its place in `TenantPolicy`.

    `null_word` is a word that means the same as null; `null_means` says what null means, None where
    null is not allowed. `scopes` are those in which it may stand.
    """

    path: str
    attribute: str
    kind: Kind
    about: str
    minimum: float = 0
    maximum: float = 0
    choices: tuple[str, ...] = ()
    null_word: str | None = None
    null_means: str | None = None
    scopes: frozenset[Scope] = frozenset(Scope)

    @property
    def default(self) -> object:
        """The value in force where the file says nothing."""
        if self.attribute == "effort_tokens":
            return dict(DEFAULT_EFFORT_TOKENS)[self.path.removeprefix("effort.")]
        value: object = TenantPolicy()
        for name in self.attribute.split("."):
            value = getattr(value, name)
        return value


@dataclass(frozen=True, slots=True)
class Section:
    """A group of leaves. A single value in its place stands for those of `short`."""

    name: str
    about: str
    short: tuple[str, ...] = ()


def words(enum: type[Enum]) -> tuple[str, ...]:
    """The words by which a file names the values of `enum`."""
    return tuple(item.name.lower() for item in enum)


_OWN = frozenset({Scope.DEFAULTS, Scope.TENANT})
_NO_LIMIT = "no limit"

SECTIONS: tuple[Section, ...] = (
    Section("effort", "Thinking tokens for each effort word that a client may send."),
    Section(
        "budget",
        "How much a request may think. A single value sets `default` and `max` at once.",
        ("budget.default", "budget.max"),
    ),
    Section("quota", "What a tenant may hold and spend, over all its models."),
    Section(
        "loops",
        "When repeated text counts as a loop. `true` or `false` sets `enabled`.",
        ("loops.enabled",),
    ),
    Section(
        "landing",
        "How thinking is ended. `true` or `false` sets `enabled`.",
        ("landing.enabled",),
    ),
    Section("queue", "Waiting in the gateway."),
    Section("output", "What the client sees."),
)

LEAVES: tuple[Leaf, ...] = (
    Leaf(
        "mode", "mode", Kind.CHOICE,
        "How much acts: `off` relays only, `observe` watches and counts, `shadow` also decides "
        "without acting, `enforce` acts.",
        choices=words(Mode),
    ),
    Leaf(
        "mode_percent", "mode_percent", Kind.PERCENT,
        "For how many of the requests `mode` holds (a stable hash); `observe` for the others.",
        0, 100,
    ),
    Leaf(
        "allow_models", "models", Kind.PATTERNS,
        "Models that the tenant may use: shell patterns (`*`, `?`, `[…]`), case-sensitive.",
        scopes=_OWN,
    ),
    Leaf(
        "priority", "priority", Kind.CHOICE,
        "Priority band. A client may ask for a later one, never for an earlier one.",
        choices=words(Priority), scopes=_OWN | {Scope.MODEL},
    ),
    Leaf(
        "weight", "weight", Kind.NUMBER,
        "Share of a full fleet, against the weights of the other tenants in the same band.",
        0.01, 1_000, scopes=_OWN,
    ),
    *(
        Leaf(
            f"effort.{word}", "effort_tokens", Kind.TOKENS,
            f"Thinking tokens for effort `{word}`.", 0, _MOST_TOKENS,
            null_word="unlimited", null_means="no budget of its own",
        )
        for word, _ in DEFAULT_EFFORT_TOKENS
    ),
    Leaf(
        "budget.default", "default_budget_tokens", Kind.TOKENS,
        "Thinking tokens where the client names neither a number nor an effort. 0: no thinking.",
        0, _MOST_TOKENS, null_word="unlimited", null_means=_NO_LIMIT,
    ),
    Leaf(
        "budget.max", "max_budget_tokens", Kind.TOKENS,
        "The most that a client can get, by number or by effort.",
        0, _MOST_TOKENS, null_word="unlimited", null_means=_NO_LIMIT,
    ),
    Leaf(
        "budget.strictness", "strictness", Kind.CHOICE,
        "`hint`: grace and wrap-up come after the budget. `cap`: they lie inside it. `proven`: as "
        "`cap`, and only on workers that have been seen to obey. A client can only ask for more.",
        choices=words(Strictness),
    ),
    Leaf(
        "answer_reserve", "answer_reserve_tokens", Kind.TOKENS,
        "Tokens of `max_completion_tokens` that thinking must leave for the answer.",
        0, _MOST_TOKENS, null_word="auto", null_means="taken from the forecast",
    ),
    Leaf(
        "deadline", "deadline_s", Kind.SECONDS,
        "The answer must have ended this long after the request arrived; thinking is landed early "
        "enough for it.",
        0.1, 86_400, null_word="unlimited", null_means="no deadline",
    ),
    Leaf(
        "quota.concurrent", "max_concurrent", Kind.COUNT,
        "Requests running at the same time; more wait in the tenant's queue.",
        1, 1_000_000, scopes=_OWN, null_word="unlimited", null_means=_NO_LIMIT,
    ),
    Leaf(
        "quota.kv_area_per_minute", "kv_area_per_minute", Kind.AREA,
        "KV area (token²) per minute: a request with s prompt and o output tokens costs "
        "s·o + o(o+1)/2. One minute's worth can be saved up.",
        1, _MOST_AREA, scopes=_OWN, null_word="unlimited", null_means=_NO_LIMIT,
    ),
    Leaf(
        "long_task_share", "long_task_share", Kind.SHARE,
        "The share of a KV pool that requests with a long forecast may hold together.",
        0, 1,
    ),
    Leaf("loops.enabled", "loops.enabled", Kind.SWITCH, "Whether a loop lands the thinking."),
    Leaf(
        "loops.min_repeats", "loops.min_repeats", Kind.COUNT,
        "Copies of a block that make a loop.", 3, 1_000,
    ),
    Leaf(
        "loops.min_run", "loops.min_run_tokens", Kind.TOKENS,
        "Repeated tokens that make a loop, whatever the length of the block.", 16, 65_536,
    ),
    Leaf(
        "landing.enabled", "landing.enabled", Kind.SWITCH,
        "Whether thinking may be ended at all. `false`: requests are admitted and relayed only.",
    ),
    Leaf(
        "landing.grace", "landing.grace_tokens", Kind.TOKENS,
        "Tokens in which the wrap-up waits for the end of a sentence or block, at the least.",
        0, 4_096,
    ),
    Leaf(
        "landing.grace_fraction", "landing.grace_fraction", Kind.SHARE,
        "The same as a share of the budget; the larger of the two holds.", 0, 0.5,
    ),
    Leaf(
        "landing.unlanded_share", "landing.unlanded_share", Kind.SHARE,
        "Requests that only `budget.max` may land, so that the forecast keeps seeing natural "
        "lengths.",
        0, 1,
    ),
    Leaf(
        "landing.wrap_up_text", "landing.wrap_up_text", Kind.TEXT,
        "Text with which thinking is ended.", 1, 2_000,
        null_means="the model family's own",
    ),
    Leaf(
        "queue.ttl", "queue.ttl_s", Kind.SECONDS,
        "How long a request may wait before it is shed.", 0, 3_600,
    ),
    Leaf(
        "queue.max_queued", "queue.max_queued", Kind.COUNT,
        "Requests that may wait at the same time; more are refused with 429.", 0, 1_000_000,
    ),
    Leaf(
        "queue.commit_after", "queue.commit_after_s", Kind.SECONDS,
        "Until then nothing is sent, so that a refusal is a real status code. After it a streaming "
        "client gets 200 and comments that keep the connection open.",
        0, 600,
    ),
    Leaf(
        "output.reasoning_field", "reasoning_field", Kind.CHOICE,
        "The member that carries reasoning text: the engine's own, one of the two, or both.",
        choices=words(ReasoningField),
    ),
    Leaf(
        "output.governor_block", "governor_block", Kind.CHOICE,
        "Whether responses carry the `governor` block: budget asked for and granted, tokens used, "
        "cause of the end.",
        choices=words(GovernorBlock),
    ),
    Leaf(
        "allow_extras", "allow_extras", Kind.NAMES,
        "Engine-specific request members that are passed on although they can run code or steer "
        "routing (`custom_logit_processor`, `vllm_xargs`, `priority`, `cache_salt`, …).",
    ),
)  # fmt: skip

BY_PATH: dict[str, Leaf] = {leaf.path: leaf for leaf in LEAVES}
BY_SECTION: dict[str, Section] = {section.name: section for section in SECTIONS}


def _keys_of(scope: Scope) -> dict[str, Leaf | Section]:
    found: dict[str, Leaf | Section] = {}
    for leaf in LEAVES:
        if scope in leaf.scopes:
            head = leaf.path.split(".")[0]
            found.setdefault(head, BY_SECTION.get(head, leaf))
    return found


def _leaves_of(section: str, scope: Scope) -> dict[str, Leaf]:
    return {
        leaf.path.removeprefix(section + "."): leaf
        for leaf in LEAVES
        if leaf.path.startswith(section + ".") and scope in leaf.scopes
    }


# The keys that hold values, by where a policy stands, in the order of the table.
KEYS: Mapping[Scope, Mapping[str, Leaf | Section]] = {scope: _keys_of(scope) for scope in Scope}
# The leaves of a section by their last name.
SECTION_LEAVES: Mapping[tuple[str, Scope], Mapping[str, Leaf]] = {
    (section.name, scope): _leaves_of(section.name, scope)
    for section in SECTIONS
    for scope in Scope
}
