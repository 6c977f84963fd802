"""A budget of N is N, in every dialect and however many tokens the worker packs into a chunk."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from governor_probes.tiny_reasoner.task import make_problem
from tests.running_stack import Answer, Gateway

pytestmark = pytest.mark.slow

# Problems of nine items take about 130 tokens of thinking.
QUESTION = make_problem(Random(9), 9).question
# Of the shipped model's tokenizer.
END_OF_THINKING, NEWLINE = 302, 201
WRAP_UP = [NEWLINE, END_OF_THINKING, NEWLINE, NEWLINE]

DIALECTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "vllm": lambda n: {"thinking_token_budget": n},
    "qwen": lambda n: {"thinking_budget": n},
    "anthropic": lambda n: {"thinking": {"type": "enabled", "budget_tokens": n}},
    "governor": lambda n: {"governor": {"budget_tokens": n}},
}
MODELS = ("tiny-reasoner", "tiny-reasoner-by3", "tiny-reasoner-by20")


def spent(answer: Answer) -> int:
    """Tokens up to the end of the wrap-up, its trailing newlines included."""
    ids = answer.token_ids
    assert ids.count(END_OF_THINKING) == 1, "thinking ends once and never starts again"
    end = ids.index(END_OF_THINKING)
    assert ids[end - 1 : end + 3] == WRAP_UP
    return end + 3


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_budget_holds_with_the_wrap_up_inside(gateway: Gateway, dialect: str, model: str) -> None:
    for budget in (24, 61):
        answer = gateway.stream(
            QUESTION,
            model=model,
            return_token_ids=True,
            stream_options={"include_usage": True},
            **DIALECTS[dialect](budget),
        )
        used = spent(answer)
        assert used <= budget
        # nothing of the budget is given away but the search for a line's end
        assert used > budget // 2
        assert answer.content
        assert answer.headers["x-governor-budget-asked"] == str(budget)
        assert answer.headers["x-governor-budget-granted"] == str(budget)
        assert answer.headers["x-governor-budget-reason"] == "client_budget"
        assert answer.headers["x-governor-budget-path"] == "native"
        details = answer.usage["completion_tokens_details"]
        assert details["reasoning_tokens"] == used - 3
        outcome = gateway.decision(answer)["outcome"]
        assert (outcome["cause"], outcome["landed"]) == ("wrapped_up", "budget_spent")
        assert (outcome["exact"], outcome["cap_violated"]) == (True, False)
        assert outcome["reasoning_tokens"] == details["reasoning_tokens"]


@pytest.mark.parametrize("model", MODELS)
def test_a_policys_budget_binds_who_names_none(
    gateway: Gateway, as_tenant: Callable[[str], dict[str, str]], model: str
) -> None:
    asked = {"headers": as_tenant("small"), "model": model, "return_token_ids": True}
    for extra in ({}, {"thinking_token_budget": 500}):
        answer = gateway.stream(QUESTION, **asked, **extra)
        granted = int(answer.headers["x-governor-budget-granted"])
        assert spent(answer) <= granted
        # forty, or the floor below which a cut breaks more than it saves
        assert granted == 40 or answer.headers["x-governor-budget-reason"] == "safe_cut_floor"
        assert answer.headers.get("x-governor-budget-asked") == ("500" if extra else None)
        assert answer.content


def test_a_budget_that_is_not_needed_changes_nothing(gateway: Gateway) -> None:
    free = gateway.stream(QUESTION)
    bounded = gateway.stream(QUESTION, thinking_token_budget=1000)
    assert (bounded.reasoning, bounded.content) == (free.reasoning, free.content)
    assert gateway.decision(bounded)["outcome"]["cause"] == "completed"


def test_no_effort_is_no_thinking(gateway: Gateway) -> None:
    for off in (
        {"reasoning_effort": "none"},
        {"thinking_token_budget": 0},
        {"thinking": {"type": "disabled"}},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ):
        answer = gateway.chat("sum h8s2", governor={"explain": True}, **off)
        assert answer.reasoning == ""
        assert answer.content
        assert answer.usage["completion_tokens_details"]["reasoning_tokens"] == 0
        assert answer.governor["thinking_off"]


@pytest.mark.parametrize("model", MODELS)
def test_an_effort_is_the_number_that_the_policy_gives_it(gateway: Gateway, model: str) -> None:
    # 48 by this policy, 512 by default; the second is more than the problem needs.
    low = gateway.stream(QUESTION, model=model, reasoning_effort="low", return_token_ids=True)
    assert spent(low) <= 48
    assert low.content
    minimal = gateway.chat("sum h8s2k9", model=model, reasoning_effort="minimal")
    assert minimal.content == "19"
    for answer, tokens in ((low, "48"), (minimal, "512")):
        assert answer.headers["x-governor-budget-asked"] == tokens
        assert answer.headers["x-governor-budget-granted"] == tokens
        assert answer.headers["x-governor-budget-reason"] == "client_effort"


def test_max_completion_tokens_leaves_room_for_the_answer(gateway: Gateway) -> None:
    for limit in (48, 64):
        answer = gateway.stream(QUESTION, max_completion_tokens=limit, return_token_ids=True)
        assert len(answer.token_ids) <= limit
        assert answer.content
        assert answer.finish_reason == "stop"
        assert answer.headers["x-governor-budget-reason"] == "completion_limit"


def test_a_budget_below_the_wrap_up_is_no_thinking(gateway: Gateway) -> None:
    answer = gateway.chat("sum h8s2", thinking_token_budget=3)
    assert (answer.reasoning, answer.headers["x-governor-budget-reason"]) == ("", "thinking_off")
    assert answer.content
