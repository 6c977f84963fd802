"""Low-cardinality enums shared by decisions, ledger, metrics, logs and dashboards. Values are wire
names and metric labels."""

from enum import IntEnum, StrEnum


class Cause(StrEnum):
    """Why a request ended. Every request ends with exactly one of these."""

    COMPLETED = "completed"
    WRAPPED_UP = "wrapped_up"
    CUT_OFF = "cut_off"
    CLIENT_GONE = "client_gone"
    UPSTREAM_ERROR = "upstream_error"
    TIMED_OUT = "timed_out"
    REFUSED = "refused"


class WrapUpReason(StrEnum):
    """Why thinking was ended by Governor rather than by the model."""

    BUDGET_SPENT = "budget_spent"
    DEADLINE = "deadline"
    LOOP = "loop"
    CONVERGED = "converged"
    LOW_VALUE = "low_value"
    PRESSURE = "pressure"
    OPERATOR = "operator"


class Outcome(StrEnum):
    """The three answers of admission."""

    ADMIT = "admit"
    QUEUE = "queue"
    SHED = "shed"


class Reason(StrEnum):
    """Why admission answered as it did."""

    FITS = "fits"
    BYPASS = "bypass"
    FAIL_OPEN = "fail_open"
    ADMISSION_OFF = "admission_off"
    NO_HEADROOM = "no_headroom"
    LOST_RACE = "lost_race"
    BEHIND_OTHERS = "behind_others"
    TENANT_CONCURRENCY = "tenant_concurrency"
    TENANT_QUOTA = "tenant_quota"
    LONG_TASK_SHARE = "long_task_share"
    QUEUE_FULL = "queue_full"
    QUEUE_TTL = "queue_ttl"
    DEADLINE_UNREACHABLE = "deadline_unreachable"
    NEVER_FITS = "never_fits"
    FLEET_STALE = "fleet_stale"
    NO_WORKER = "no_worker"
    DRAINING = "draining"

    @property
    def is_tenants_own(self) -> bool:
        """True for the tenant's own limits (HTTP 429), false for the fleet's (HTTP 503)."""
        return self in (Reason.TENANT_CONCURRENCY, Reason.TENANT_QUOTA, Reason.QUEUE_FULL)


class GrantReason(StrEnum):
    """Which line of the precedence table set the budget."""

    CLIENT_BUDGET = "client_budget"
    CLIENT_EFFORT = "client_effort"
    CLIENT_DEADLINE = "client_deadline"
    POLICY_DEADLINE = "policy_deadline"
    POLICY_DEFAULT = "policy_default"
    POLICY_MAXIMUM = "policy_maximum"
    COMPLETION_LIMIT = "completion_limit"
    SAFE_CUT_FLOOR = "safe_cut_floor"
    PRICE = "price"
    THINKING_OFF = "thinking_off"
    UNLIMITED = "unlimited"
    NOT_GOVERNED = "not_governed"


class Mode(StrEnum):
    """How much of a policy acts on a request."""

    OFF = "off"
    OBSERVE = "observe"
    SHADOW = "shadow"
    ENFORCE = "enforce"


class Strictness(StrEnum):
    """How binding a budget is: grace and wrap-up lie after it (hint) or inside it (cap, proven)."""

    HINT = "hint"
    CAP = "cap"
    PROVEN = "proven"


class LandingPath(StrEnum):
    """By which means a budget or a landing reaches the worker."""

    NATIVE = "native"
    CONTROL = "control"
    SPLICE = "splice"
    NONE = "none"


class Priority(IntEnum):
    """Priority bands; lower is earlier, as in vLLM."""

    CRITICAL = 0
    HIGH = 1
    NORMAL = 2
    LOW = 3
    BATCH = 4


class ReasoningField(StrEnum):
    """Which member carries reasoning text to the client."""

    ENGINE = "engine"
    REASONING = "reasoning"
    REASONING_CONTENT = "reasoning_content"
    BOTH = "both"
