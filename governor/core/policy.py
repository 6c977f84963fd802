"""A tenant's policy in its validated domain form, and its resolution for one request. Knows
nothing of YAML."""

from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from governor.core.outcomes import Mode, Priority, ReasoningField, Strictness

# Thinking tokens by effort word; None = no budget of its own. The words are those of OpenAI and
# vLLM. The numbers are
# ours: halvings of 32k, the cap that public reasoning models are evaluated at.
DEFAULT_EFFORT_TOKENS: tuple[tuple[str, int | None], ...] = (
    ("none", 0),
    ("minimal", 512),
    ("low", 2_048),
    ("medium", 8_192),
    ("high", 16_384),
    ("xhigh", 32_768),
    ("max", None),
)


@dataclass(frozen=True, slots=True)
class LoopPolicy:
    """When a repeating stream counts as a loop. Three copies of a block are the least that is ever
    called a loop."""

    enabled: bool = True
    min_repeats: int = 3
    min_run_tokens: int = 48


@dataclass(frozen=True, slots=True)
class LandingPolicy:
    """How thinking is ended. Grace is max(`grace_tokens`, `grace_fraction` of the budget), DESIGN
    §8.

    `unlanded_share` of requests stays unlanded up to `max_budget_tokens` so that the forecast's
    tail stays identifiable.
    """

    enabled: bool = True
    grace_tokens: int = 32
    grace_fraction: float = 0.10
    unlanded_share: float = 0.01
    wrap_up_text: str | None = None


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """How long and how many of a tenant's requests may wait in the gateway."""

    ttl_s: float = 30.0
    max_queued: int = 1_000
    commit_after_s: float = 5.0


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """Everything that a policy file says of one tenant, defaults filled in."""

    tenant: str = "default"
    mode: Mode = Mode.ENFORCE
    mode_percent: float = 100.0
    models: tuple[str, ...] = ("*",)
    priority: Priority = Priority.NORMAL
    weight: float = 1.0
    effort_tokens: tuple[tuple[str, int | None], ...] = DEFAULT_EFFORT_TOKENS
    default_budget_tokens: int | None = None
    max_budget_tokens: int | None = None
    answer_reserve_tokens: int | None = None
    strictness: Strictness = Strictness.CAP
    deadline_s: float | None = None
    max_concurrent: int | None = None
    kv_area_per_minute: int | None = None
    long_task_share: float = 1.0
    loops: LoopPolicy = field(default_factory=LoopPolicy)
    landing: LandingPolicy = field(default_factory=LandingPolicy)
    queue: QueuePolicy = field(default_factory=QueuePolicy)
    reasoning_field: ReasoningField = ReasoningField.ENGINE
    allow_extras: tuple[str, ...] = ()

    def allows(self, model: str) -> bool:
        """Whether the tenant may use `model` (shell-style patterns, case-sensitive)."""
        return any(fnmatchcase(model, pattern) for pattern in self.models)

    def tokens_for_effort(self, effort: str) -> int | None:
        """Budget for an effort word; None for an unknown word or one without a budget of its
        own."""
        return dict(self.effort_tokens).get(effort)


@dataclass(frozen=True, slots=True)
class PolicySet:
    """One policy file, whole. `policy_hash` identifies it in decision records; `keys` maps SHA-256
    of a key to a tenant.

    `default_tenant` serves callers without a key; None means that a key is needed.
    """

    policy_hash: str
    tenants: tuple[tuple[str, TenantPolicy], ...]
    keys: tuple[tuple[str, str], ...] = ()
    default_tenant: str | None = "default"

    def tenant(self, name: str) -> TenantPolicy | None:
        """The tenant's policy, or None for an unknown tenant."""
        return dict(self.tenants).get(name)


def effective_mode(policy: TenantPolicy, draw: float) -> Mode:
    """Mode for one request: the policy's own for `mode_percent` of requests (stable `draw` in [0,
    1)), else observe."""
    if policy.mode is Mode.OFF or draw * 100.0 < policy.mode_percent:
        return policy.mode
    return Mode.OBSERVE
