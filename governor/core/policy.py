"""A tenant's policy in its validated domain form, and its resolution for one request. Knows
nothing of YAML."""

from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase

from governor.core.keys import Caller, KeyEntry, KeyRing
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


class GovernorBlock(StrEnum):
    """When a response carries the `governor` block."""

    ON_REQUEST = "on_request"
    ALWAYS = "always"
    NEVER = "never"


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
    governor_block: GovernorBlock = GovernorBlock.ON_REQUEST
    allow_extras: tuple[str, ...] = ()

    def allows(self, model: str) -> bool:
        """Whether the tenant may use `model` (shell-style patterns, case-sensitive)."""
        return any(fnmatchcase(model, pattern) for pattern in self.models)

    def tokens_for_effort(self, effort: str) -> int | None:
        """Budget for an effort word; None for an unknown word or one without a budget of its
        own."""
        return dict(self.effort_tokens).get(effort)


@dataclass(frozen=True, slots=True)
class Variant:
    """A tenant's policy for some of its requests, whole: overrides are merged when a file is read.

    It is for models that match `pattern` (None: models that match no pattern of the tenant) and for
    requests of priority `band` (None: bands without an override).
    """

    pattern: str | None
    band: Priority | None
    policy: TenantPolicy


class NotResolved(StrEnum):
    """Why a request has no policy."""

    UNKNOWN_TENANT = "unknown_tenant"
    MODEL_NOT_ALLOWED = "model_not_allowed"


@dataclass(frozen=True, slots=True)
class Resolved:
    """The policy of one request, and what chose it.

    `priority` is the request's band: what the client asked for, never earlier than the policy's.
    `pattern` and `band` name the override that applied, None where none did.
    """

    policy: TenantPolicy
    priority: Priority
    pattern: str | None
    band: Priority | None


@dataclass(frozen=True, slots=True)
class Unresolved:
    """No policy for this request."""

    reason: NotResolved


@dataclass(frozen=True, slots=True)
class PolicySet:
    """One policy file, whole. `policy_hash` identifies it in decision records.

    `tenants` holds each tenant's own policy, `variants` its overrides. `default_tenant` serves
    callers without a key; None means that a key is needed.
    """

    policy_hash: str
    tenants: tuple[tuple[str, TenantPolicy], ...]
    keys: tuple[KeyEntry, ...] = ()
    default_tenant: str | None = "default"
    variants: tuple[tuple[str, Variant], ...] = ()
    _by_tenant: dict[str, TenantPolicy] = field(init=False, repr=False, compare=False)
    _patterns: dict[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)
    _by_override: dict[tuple[str, str | None, Priority | None], TenantPolicy] = field(
        init=False, repr=False, compare=False
    )
    _ring: KeyRing = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Index what each request looks up. Frozen: nothing is written after this."""
        patterns: dict[str, list[str]] = {}
        by_override = {}
        for tenant, variant in self.variants:
            by_override[tenant, variant.pattern, variant.band] = variant.policy
            known = patterns.setdefault(tenant, [])
            if variant.pattern is not None and variant.pattern not in known:
                known.append(variant.pattern)
        ordered = {
            name: tuple(sorted(found, key=specificity, reverse=True))
            for name, found in patterns.items()
        }
        object.__setattr__(self, "_by_tenant", dict(self.tenants))
        object.__setattr__(self, "_patterns", ordered)
        object.__setattr__(self, "_by_override", by_override)
        object.__setattr__(self, "_ring", KeyRing(self.keys, self.default_tenant))

    def tenant(self, name: str) -> TenantPolicy | None:
        """The tenant's own policy, without overrides, or None for an unknown tenant."""
        return self._by_tenant.get(name)

    def caller(self, presented_key: str | None, wall_s: float) -> Caller:
        """Whose request it is, by the key that it presents (without `Bearer `)."""
        return self._ring.caller(presented_key, wall_s)

    def resolve(
        self, tenant: str, model: str, priority: Priority | None = None
    ) -> Resolved | Unresolved:
        """The policy of a request of `tenant` for `model` that asks for `priority` (None: did not).

        Of the tenant's model patterns that match, the most specific one applies, alone. Then the
        override of the request's band, if any, applies on top. Tenant and model must be known and
        allowed; the rest cannot fail.
        """
        own = self._by_tenant.get(tenant)
        if own is None:
            return Unresolved(NotResolved.UNKNOWN_TENANT)
        if not own.allows(model):
            return Unresolved(NotResolved.MODEL_NOT_ALLOWED)
        patterns = self._patterns.get(tenant, ())
        pattern = next((found for found in patterns if fnmatchcase(model, found)), None)
        policy = self._by_override.get((tenant, pattern, None), own)
        band = policy.priority if priority is None else max(priority, policy.priority)
        of_band = self._by_override.get((tenant, pattern, band))
        if of_band is not None:
            return Resolved(of_band, band, pattern, band)
        return Resolved(policy, band, pattern, None)


def specificity(pattern: str) -> tuple[bool, int, int]:
    """Order of model patterns, the greater the more specific: a name without wildcards, then more
    literal characters, then fewer `*`. Equal ones keep the order of the file."""
    wild = sum(pattern.count(sign) for sign in "*?[")
    literal = sum(character not in "*?[]!" for character in pattern)
    return (wild == 0, literal, -pattern.count("*"))


def effective_mode(policy: TenantPolicy, draw: float) -> Mode:
    """Mode for one request: the policy's own for `mode_percent` of requests (stable `draw` in [0,
    1)), else observe."""
    if policy.mode is Mode.OFF or draw * 100.0 < policy.mode_percent:
        return policy.mode
    return Mode.OBSERVE
