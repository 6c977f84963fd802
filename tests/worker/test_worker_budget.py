"""thinking_token_budget: exact at any packing, continued tags, grace, no thinking at all."""

from typing import Any

import pytest

pytestmark = pytest.mark.slow
END, NEWLINE = 302, 201
ENDLESS = "sum a1b2c3d4e5f6g7h8i9j9k9"


def reasoning_ids(stream: Any) -> list[int]:
    ids: list[int] = stream.token_ids
    return ids[: ids.index(END)]


@pytest.mark.parametrize("budget", [0, 1, 10, 50])
def test_the_model_thinks_exactly_its_budget(live_by_interval: Any, budget: int) -> None:
    live = live_by_interval
    free = live.stream(ENDLESS, max_tokens=60).token_ids
    stream = live.stream(ENDLESS, thinking_token_budget=budget, max_tokens=100)
    thought = reasoning_ids(stream)
    assert thought[:budget] == free[:budget]
    # Behind the budget stands the wrap-up: a newline unless a line has just ended, and the tag.
    at_line_start = budget == 0 or free[budget - 1] == NEWLINE
    assert thought[budget:] == ([] if at_line_start else [NEWLINE])
    assert stream.token_ids[len(thought) :][:3] == [END, NEWLINE, NEWLINE]
    assert stream.usage["completion_tokens_details"]["reasoning_tokens"] == len(thought)
    assert stream.finish_reason == "stop"
    assert stream.text("content").strip().isdigit()
    assert "think" not in stream.text("content") + stream.text("reasoning")


def test_a_budget_above_the_need_changes_nothing(live: Any) -> None:
    assert live.stream("sum h8s2", thinking_token_budget=500).token_ids == (
        live.stream("sum h8s2").token_ids
    )


def test_minus_one_is_unlimited(live: Any) -> None:
    assert live.stream("sum h8s2", thinking_token_budget=-1).token_ids == (
        live.stream("sum h8s2").token_ids
    )


@pytest.mark.parametrize("value", [True, 1.5, "10", -2])
def test_other_values_are_refused(live: Any, value: object) -> None:
    reply = live.post("/v1/chat/completions", live.body("sum h8s2", thinking_token_budget=value))
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "thinking_token_budget"


@pytest.mark.parametrize("budget", [20, 33, 47])
def test_grace_inside_the_budget_ends_on_a_line(live: Any, budget: int) -> None:
    free = live.stream(ENDLESS, max_tokens=60).token_ids
    stream = live.stream(
        ENDLESS, thinking_token_budget=budget, vllm_xargs={"governor_grace_tokens": 12}
    )
    thought = reasoning_ids(stream)
    ends = [i + 1 for i, token in enumerate(free) if token == NEWLINE]
    first = next(n for n in ends if budget - 12 < n <= budget)
    assert thought == free[:first]


def test_enable_thinking_false_closes_the_block_in_the_prompt(live: Any) -> None:
    stream = live.stream("sum h8s2", chat_template_kwargs={"enable_thinking": False})
    assert END in stream.chunks[0]["prompt_token_ids"]
    assert stream.text("reasoning") == ""
    assert stream.usage["completion_tokens_details"]["reasoning_tokens"] == 0


def test_a_budget_holds_for_completions_and_for_text_that_opens_thinking(live: Any) -> None:
    prompt = "<|im_start|>user\nsum h8s2<|im_end|>\n<|im_start|>assistant\n<think>\n"
    body = {"prompt": prompt, "max_tokens": 40, "thinking_token_budget": 3}
    assert (
        live.post("/v1/completions", body)
        .json()["choices"][0]["text"]
        .startswith("h8=\n</think>\n\n")
    )
