"""Reading a client's words on thinking in every dialect, and refusing what is malformed."""

from typing import Any

import pytest

from governor.core.errors import RequestInvalid
from governor.core.outcomes import Strictness
from governor.core.policy import TenantPolicy
from governor.gateway.dialects import BUDGETS, EFFORTS, SWITCHES
from governor.gateway.fields import MOST_TOKENS
from tests.wire_builders import HELLO, NOW_US, chat, nested, parse_bytes

# -- dialects -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "tokens", "effort", "dialect"),
    [
        pytest.param({"reasoning_effort": "low"}, None, "low", "openai", id="openai-effort"),
        pytest.param({"reasoning": {"effort": "high"}}, None, "high", "openai", id="reasoning"),
        pytest.param({"reasoning": {"max_tokens": 7}}, 7, None, "openrouter", id="openrouter"),
        pytest.param({"reasoning": {"enabled": False}}, 0, None, "openrouter", id="openrouter-off"),
        pytest.param({"reasoning": {"enabled": True}}, None, None, None, id="openrouter-on"),
        pytest.param({"thinking_token_budget": 9}, 9, None, "vllm", id="vllm"),
        pytest.param({"thinking_token_budget": 0}, 0, None, "vllm", id="vllm-zero"),
        pytest.param({"thinking_token_budget": -1}, None, None, None, id="vllm-unlimited"),
        pytest.param({"thinking_budget": 8}, 8, None, "qwen", id="qwen"),
        pytest.param(
            {"chat_template_kwargs": {"thinking_budget": 8}}, 8, None, "qwen", id="qwen-template"
        ),
        pytest.param({"enable_thinking": False}, 0, None, "qwen", id="qwen-off"),
        pytest.param({"enable_thinking": True}, None, None, None, id="qwen-on"),
        pytest.param(
            {"chat_template_kwargs": {"enable_thinking": False}}, 0, None, "qwen", id="template-off"
        ),
        pytest.param(
            {"chat_template_kwargs": {"thinking": False}}, 0, None, "qwen", id="template-thinking"
        ),
        pytest.param(
            {"chat_template_kwargs": {"reasoning_effort": "low"}},
            None,
            "low",
            "vllm",
            id="template-effort",
        ),
        pytest.param(
            {"thinking": {"type": "enabled", "budget_tokens": 1024}},
            1024,
            None,
            "anthropic",
            id="anthropic",
        ),
        pytest.param(
            {"thinking": {"type": "disabled"}}, 0, None, "anthropic", id="anthropic-disabled"
        ),
        pytest.param(
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}},
            None,
            "max",
            "anthropic",
            id="anthropic-adaptive",
        ),
        pytest.param(
            {"thinkingConfig": {"thinkingBudget": 5}}, 5, None, "gemini", id="gemini-top-level"
        ),
        pytest.param(
            {"generationConfig": {"thinkingConfig": {"thinkingBudget": 0}}},
            0,
            None,
            "gemini",
            id="gemini-off",
        ),
        pytest.param(
            {"generationConfig": {"thinkingConfig": {"thinkingBudget": -1}}},
            None,
            None,
            None,
            id="gemini-dynamic",
        ),
        pytest.param(
            {"generationConfig": {"thinkingConfig": {"thinkingLevel": "HIGH"}}},
            None,
            "high",
            "gemini",
            id="gemini-level",
        ),
        pytest.param({"thinking_budget_tokens": 6}, 6, None, "llama.cpp", id="llama.cpp"),
        pytest.param({"nvext": {"max_thinking_tokens": 4}}, 4, None, "nim", id="nim"),
        pytest.param({"thinking": {"token_budget": 3}}, 3, None, "cohere", id="cohere"),
        pytest.param({"custom_params": {"thinking_budget": 2}}, 2, None, "sglang", id="sglang"),
        pytest.param({"governor": {"budget_tokens": 1}}, 1, None, "governor", id="governor"),
        pytest.param({}, None, None, None, id="silent"),
    ],
)
def test_each_dialect_becomes_one_ask(
    members: dict[str, Any], tokens: int | None, effort: str | None, dialect: str | None
) -> None:
    parsed = chat(**members)
    ask = parsed.demand.ask
    assert (ask.budget_tokens, ask.effort, ask.dialect) == (tokens, effort, dialect)
    assert parsed.notes == ()
    assert parsed.demand.thinks is (tokens != 0)


def test_extra_arguments_that_ours_would_join_must_be_an_object() -> None:
    with pytest.raises(RequestInvalid) as caught:
        chat(TenantPolicy(allow_extras=("vllm_xargs",)), vllm_xargs=[1])
    assert caught.value.param == "vllm_xargs"


def test_our_own_object_carries_every_member() -> None:
    own = {
        "budget_tokens": 10,
        "budget_s": 1.5,
        "min_tokens": 2,
        "answer_reserve": 3,
        "strictness": "proven",
        "deadline_s": 2,
        "explain": True,
    }
    parsed = chat(governor=own)
    ask = parsed.demand.ask
    assert (ask.budget_tokens, ask.budget_us, ask.min_tokens) == (10, 1_500_000, 2)
    assert (ask.answer_reserve_tokens, ask.strictness) == (3, Strictness.PROVEN)
    assert parsed.demand.deadline_us == NOW_US + 2_000_000
    assert parsed.wants_governor_block
    assert "governor" not in parsed.payload


def test_a_number_and_an_effort_are_both_kept() -> None:
    ask = chat(reasoning={"effort": "high", "max_tokens": 5}).demand.ask
    assert (ask.budget_tokens, ask.effort) == (5, "high")


def test_the_smallest_number_wins_and_is_named() -> None:
    parsed = chat(thinking_token_budget=50, thinking_budget=20, governor={"budget_tokens": 90})
    assert parsed.demand.ask.budget_tokens == 20
    assert parsed.demand.ask.dialect == "qwen"
    assert parsed.notes == ("several thinking budgets: the smallest applies (thinking_budget)",)


def test_equal_numbers_are_no_conflict() -> None:
    assert chat(thinking_token_budget=50, thinking_budget=50).notes == ()


def test_off_beats_a_number() -> None:
    parsed = chat(thinking_token_budget=50, enable_thinking=False)
    assert parsed.demand.ask.budget_tokens == 0
    assert parsed.notes == ("several thinking budgets: the smallest applies (enable_thinking)",)


def test_off_beats_on_and_is_noted() -> None:
    parsed = chat(thinking={"type": "disabled"}, enable_thinking=True)
    assert parsed.demand.ask.budget_tokens == 0
    assert not parsed.switched_on
    assert parsed.notes == (
        "thinking is both on and off (enable_thinking, thinking.type): off applies",
    )


def test_differing_efforts_are_noted() -> None:
    parsed = chat(reasoning_effort="low", output_config={"effort": "high"})
    assert parsed.demand.ask.effort == "low"
    assert parsed.notes == ("several efforts: reasoning_effort applies",)


def test_an_exclusion_that_is_not_applied_is_noted() -> None:
    assert "reasoning.exclude" in chat(reasoning={"exclude": True}).notes[0]


# -- types and ranges -----------------------------------------------------------------------------


@pytest.mark.parametrize("value", [True, 1.0, "10", [], {}, -2, MOST_TOKENS + 1])
@pytest.mark.parametrize("path", [path for path, _, _ in BUDGETS], ids=".".join)
def test_a_budget_is_an_integer_in_range(path: tuple[str, ...], value: object) -> None:
    with pytest.raises(RequestInvalid) as caught:
        chat(**nested(path, value))
    assert caught.value.param == ".".join(path)


@pytest.mark.parametrize("value", [3, True, "", ["low"]])
@pytest.mark.parametrize("path", [path for path, _ in EFFORTS], ids=".".join)
def test_an_effort_is_a_word(path: tuple[str, ...], value: object) -> None:
    with pytest.raises(RequestInvalid) as caught:
        chat(**nested(path, value))
    assert caught.value.param == ".".join(path)


@pytest.mark.parametrize("value", [1, 0, "true"])
@pytest.mark.parametrize("path", [path for path, _ in SWITCHES], ids=".".join)
def test_a_switch_is_a_bool(path: tuple[str, ...], value: object) -> None:
    with pytest.raises(RequestInvalid) as caught:
        chat(**nested(path, value))
    assert caught.value.param == ".".join(path)


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"model": ""}, "model"),
        ({"model": None}, "model"),
        ({"model": 3}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [HELLO[0], "x"]}, "messages[1]"),
        ({"n": 0}, "n"),
        ({"n": True}, "n"),
        ({"n": 129}, "n"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_completion_tokens": 1.5}, "max_completion_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"stream": 1}, "stream"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"logprobs": 3}, "logprobs"),
        ({"return_token_ids": "yes"}, "return_token_ids"),
        ({"response_format": "json"}, "response_format"),
        ({"thinking": True}, "thinking"),
        ({"thinking": {"type": "perhaps"}}, "thinking.type"),
        ({"generationConfig": {"thinkingConfig": 3}}, "generationConfig.thinkingConfig"),
        ({"governor": 3}, "governor"),
        ({"governor": {"budget": 3}}, "governor.budget"),
        ({"governor": {"budget_s": -1}}, "governor.budget_s"),
        ({"governor": {"deadline_s": 10**400}}, "governor.deadline_s"),
        ({"governor": {"min_tokens": -1}}, "governor.min_tokens"),
        ({"governor": {"answer_reserve": True}}, "governor.answer_reserve"),
        ({"governor": {"strictness": "firm"}}, "governor.strictness"),
        ({"governor": {"explain": "yes"}}, "governor.explain"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_wrong_member_is_named(members: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestInvalid) as caught:
        chat(**members)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"3", b"null", b'"x"', b"\xff", b"[" * 100_000, b'{"model":1e400}', b"NaN"],
)
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(RequestInvalid):
        parse_bytes(body)


def test_deep_nesting_is_refused_and_moderate_nesting_is_not() -> None:
    def with_depth(depth: int) -> bytes:
        holder = b"[" * depth + b"]" * depth
        return b'{"model":"m","messages":[{"role":"user"}],"metadata":' + holder + b"}"

    assert parse_bytes(with_depth(90)).demand.model == "m"
    with pytest.raises(RequestInvalid, match="nested"):
        parse_bytes(with_depth(200))


def test_another_path_is_refused() -> None:
    with pytest.raises(RequestInvalid) as caught:
        parse_bytes(b"{}", "/v1/embeddings")
    assert caught.value.code == "not_found"
