"""Explains a thinking budget: the lines of the precedence table for one imagined request. The rule
itself is `governor.core.budget.grant`."""

from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from governor.core.budget import BudgetGrant, grant
from governor.core.demand import Demand, ThinkingAsk
from governor.core.estimator import RunningEstimator
from governor.core.outcomes import GrantReason
from governor.core.policy import Resolved

# Of the requests that policy leaves unlanded none is explained: their share is a policy value.
_LANDED_DRAW = 0.999_999


@dataclass(frozen=True, slots=True)
class Question:
    """An imagined request. None: the client says nothing of it."""

    tenant: str
    model: str
    effort: str | None
    budget_tokens: int | None
    max_completion_tokens: int | None
    wrap_up_tokens: int


@dataclass(frozen=True, slots=True)
class TableLine:
    """One line of the precedence table, numbered as in docs/budgets.md.

    `says` is what it says of this request, None where it has no say.
    """

    number: int
    name: str
    says: str | None
    reasons: tuple[GrantReason, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """The grant, the lines, and the one that set it (None where no line gave a number)."""

    grant: BudgetGrant
    lines: tuple[TableLine, ...]
    mode: str

    @property
    def applied(self) -> TableLine | None:
        """The line that set the budget."""
        reason = self.grant.reason
        return next(
            (line for line in self.lines if line.says is not None and reason in line.reasons), None
        )

    @property
    def summary(self) -> str:
        """The grant in a sentence."""
        tokens = self.grant.thinking_tokens
        if self.grant.thinking_off:
            text = "no thinking"
        else:
            text = "no budget" if tokens is None else f"{tokens} thinking tokens"
        reserve = f"answer reserve {self.grant.answer_reserve_tokens}"
        return f"{text} ({self.grant.reason}), {reserve}, {self.grant.strictness}, {self.mode}"

    def as_json(self) -> dict[str, Any]:
        """The same as plain values."""
        applied = self.applied
        return {
            "thinking_tokens": self.grant.thinking_tokens,
            "reason": str(self.grant.reason),
            "applied_line": None if applied is None else applied.number,
            "answer_reserve_tokens": self.grant.answer_reserve_tokens,
            "grace_tokens": self.grant.grace_tokens,
            "strictness": str(self.grant.strictness),
            "asked_tokens": self.grant.asked_tokens,
            "mode": self.mode,
            "lines": [
                {"line": line.number, "name": line.name, "says": line.says} for line in self.lines
            ],
        }


def answer(found: Resolved, question: Question) -> Answer:
    """What `question` would be granted on an idle fleet that has seen no request yet: no price, no
    safe-cut floor, no deadline's share of time."""
    policy = found.policy
    demand = Demand(
        decision_id="explain",
        tenant=question.tenant,
        model=question.model,
        arrived_us=0,
        prompt_tokens=0,
        max_completion_tokens=question.max_completion_tokens,
        ask=ThinkingAsk(effort=question.effort, budget_tokens=question.budget_tokens),
        priority=found.priority,
    )
    granted = grant(
        demand,
        policy,
        RunningEstimator().forecast(question.model, question.effort),
        wrap_up_tokens=question.wrap_up_tokens,
        max_model_len=None,
        us_per_token=None,
        price=0.0,
        now_us=0,
        unlanded_draw=_LANDED_DRAW,
    )
    mode = f"{policy.mode} for {policy.mode_percent:g}% of requests"
    return Answer(granted, _lines(found, question, granted), mode)


def _lines(found: Resolved, question: Question, granted: BudgetGrant) -> tuple[TableLine, ...]:
    policy = found.policy
    known = {word for word, _ in policy.effort_tokens}
    spoke = question.budget_tokens is not None or question.effort in known
    room = question.max_completion_tokens
    if room is not None:
        room -= granted.answer_reserve_tokens
    wrap_up = f"wrap-up takes {question.wrap_up_tokens}"
    return (
        TableLine(
            1,
            "client asks for no thinking",
            "0" if granted.asked_tokens == 0 else None,
            (GrantReason.THINKING_OFF,),
        ),
        TableLine(
            2,
            "landing is off",
            None if policy.landing.enabled else "no budget",
            (GrantReason.NOT_GOVERNED,),
        ),
        TableLine(
            3,
            "policy default (budget.default)",
            None if spoke else _tokens(policy.default_budget_tokens),
            (GrantReason.POLICY_DEFAULT,),
        ),
        TableLine(
            6,
            "policy maximum (budget.max)",
            _tokens(policy.max_budget_tokens),
            (GrantReason.POLICY_MAXIMUM,),
        ),
        TableLine(
            8,
            _client_name(question, known),
            _tokens(granted.asked_tokens),
            (GrantReason.CLIENT_BUDGET, GrantReason.CLIENT_EFFORT),
        ),
        TableLine(
            9,
            "max_completion_tokens minus the answer reserve",
            _tokens(room),
            (GrantReason.COMPLETION_LIMIT,),
        ),
        TableLine(
            10,
            "what is left must exceed the wrap-up",
            wrap_up if granted.thinking_off and granted.asked_tokens != 0 else None,
            (GrantReason.THINKING_OFF,),
        ),
    )


def _client_name(question: Question, known: set[str]) -> str:
    if question.budget_tokens is not None:
        return "client's number"
    if question.effort is None:
        return "client's number or effort"
    unknown = "" if question.effort in known else ", which policy does not know"
    return f"client's effort {question.effort!r}{unknown}"


def _tokens(tokens: int | None) -> str | None:
    return None if tokens is None else str(max(0, tokens))


def answer_table(result: Answer, *, title: str) -> Table:
    """The precedence table with the line that applied marked."""
    table = Table(title=Text(title), title_justify="left")
    table.add_column("", no_wrap=True)
    table.add_column("#", justify="right")
    table.add_column("line")
    table.add_column("says", justify="right")
    applied = result.applied
    for line in result.lines:
        mark, style = ("→", "bold") if line is applied else ("", "")
        table.add_row(mark, str(line.number), line.name, line.says or "-", style=style)
    return table
