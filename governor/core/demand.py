"""What one request asks for, in one form for all dialects. Built once at the edge, read by every
decision."""

from dataclasses import dataclass, field

from governor.core.outcomes import Priority, Strictness


@dataclass(frozen=True, slots=True)
class ThinkingAsk:
    """The client's own word on thinking. None means that the client said nothing.

    Numbers stay numbers: a numeric budget is never turned into an effort word.
    """

    effort: str | None = None
    budget_tokens: int | None = None
    budget_us: int | None = None
    min_tokens: int | None = None
    answer_reserve_tokens: int | None = None
    strictness: Strictness | None = None
    dialect: str | None = None


@dataclass(frozen=True, slots=True)
class Demand:
    """One request. Times are integer microseconds on the monotonic clock of the process.

    `prompt_tokens` is an estimate (bytes over the model's learned bytes per token) unless
    `prompt_tokens_exact`.
    `thinks` is false for models without a family profile and for requests that switch thinking off.
    `landable` is false where landing cannot keep the client's request intact (n > 1): it is
    admitted and relayed.
    """

    decision_id: str
    tenant: str
    model: str
    arrived_us: int
    prompt_tokens: int
    prompt_tokens_exact: bool = False
    stream: bool = True
    max_completion_tokens: int | None = None
    ask: ThinkingAsk = field(default_factory=ThinkingAsk)
    priority: Priority = Priority.NORMAL
    deadline_us: int | None = None
    n: int = 1
    tools: bool = False
    structured: bool = False
    temperature: float | None = None
    thinks: bool = True
    landable: bool = True
