"""What a request demands: sizes, limits, deadline and priority, wishes, extras."""

from typing import Any

import pytest

from governor.core.errors import RequestInvalid
from governor.core.outcomes import Priority
from governor.core.policy import GovernorBlock, TenantPolicy
from governor.gateway.extras import EXTRAS
from tests.wire_builders import NOW_US, chat, completions

# -- demand ---------------------------------------------------------------------------------------


def test_a_demand_of_defaults() -> None:
    demand = chat().demand
    assert (demand.decision_id, demand.tenant, demand.model) == ("d-1", "default", "m")
    assert (demand.arrived_us, demand.prompt_tokens, demand.prompt_tokens_exact) == (
        NOW_US,
        len("hello"),
        False,
    )
    assert (demand.stream, demand.n, demand.tools, demand.structured) == (False, 1, False, False)
    assert (demand.max_completion_tokens, demand.deadline_us, demand.temperature) == (
        None,
        None,
        None,
    )
    assert demand.thinks
    assert demand.landable


def test_prompt_bytes_are_utf8_bytes_of_all_text() -> None:
    messages = [
        {"role": "system", "content": "häh"},
        {"role": "user", "content": [{"type": "text", "text": "ab"}, {"image_url": {"url": "x"}}]},
        {"role": "assistant", "content": None, "reasoning": "cde"},
    ]
    assert chat(messages=messages).demand.prompt_tokens == 4 + 2 + 3


def test_tool_schemas_count_as_prompt() -> None:
    parsed = chat(tools=[{"type": "function"}])
    assert parsed.demand.tools
    assert parsed.demand.prompt_tokens == len("hello") + len("typefunction")


@pytest.mark.parametrize(
    ("prompt", "tokens", "exact", "count"),
    [
        ("hello", 5, False, 1),
        (["hello", "you"], 8, False, 2),
        ([1, 2, 3], 3, True, 1),
        ([[1, 2], [3]], 3, True, 2),
    ],
)
def test_completion_prompts_are_sized(prompt: Any, tokens: int, exact: bool, count: int) -> None:
    demand = completions(prompt=prompt).demand
    assert (demand.prompt_tokens, demand.prompt_tokens_exact, demand.n) == (tokens, exact, count)
    assert demand.landable is (count == 1)
    assert not demand.thinks


@pytest.mark.parametrize("prompt", [None, [], 3, {}, [1, "a"], [True], [-1], [[]], [[1], "a"]])
def test_other_prompts_are_refused(prompt: Any) -> None:
    with pytest.raises(RequestInvalid) as caught:
        completions(prompt=prompt)
    assert caught.value.param == "prompt"


def test_several_choices_are_not_landable() -> None:
    demand = chat(n=2).demand
    assert (demand.n, demand.landable) == (2, False)


def test_a_model_without_thinking_does_not_think() -> None:
    assert not chat(model="plain").demand.thinks


@pytest.mark.parametrize(
    ("members", "structured"),
    [
        ({"response_format": {"type": "text"}}, False),
        ({"response_format": {"type": "json_object"}}, True),
        ({"guided_json": {}}, True),
        ({"structured_outputs": {"regex": "a"}}, True),
        ({"guided_regex": None}, False),
    ],
)
def test_structured_output_is_seen(members: dict[str, Any], structured: bool) -> None:
    assert chat(**members).demand.structured is structured


def test_the_newer_completion_limit_wins_with_a_note() -> None:
    parsed = chat(max_tokens=10, max_completion_tokens=20)
    assert parsed.demand.max_completion_tokens == 20
    assert parsed.notes == ("max_tokens is ignored: max_completion_tokens applies",)
    assert chat(max_tokens=10).demand.max_completion_tokens == 10
    assert completions(max_tokens=10).demand.max_completion_tokens == 10


def test_wishes_of_the_client_are_kept_apart_from_ours() -> None:
    parsed = chat(
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
        return_token_ids=True,
        logprobs=True,
    )
    assert parsed.wants_usage
    assert parsed.wants_continuous_usage
    assert parsed.wants_token_ids
    assert parsed.wants_logprobs
    silent = chat(stream=True)
    assert not silent.wants_usage
    assert not silent.wants_token_ids
    assert not silent.wants_logprobs
    assert chat().wants_usage
    assert completions(logprobs=0).wants_logprobs


@pytest.mark.parametrize(
    ("when", "explain", "wanted"),
    [
        (GovernorBlock.ON_REQUEST, True, True),
        (GovernorBlock.ON_REQUEST, False, False),
        (GovernorBlock.ALWAYS, False, True),
        (GovernorBlock.NEVER, True, False),
    ],
)
def test_the_governor_block_follows_policy(
    when: GovernorBlock, explain: bool, wanted: bool
) -> None:
    parsed = chat(TenantPolicy(governor_block=when), governor={"explain": explain})
    assert parsed.wants_governor_block is wanted


# -- headers --------------------------------------------------------------------------------------


def test_the_earlier_deadline_applies() -> None:
    header = {"x-governor-deadline-ms": "1500"}
    assert chat(headers=header).demand.deadline_us == NOW_US + 1_500_000
    assert chat(headers=header, governor={"deadline_s": 1}).demand.deadline_us == NOW_US + 1_000_000
    assert chat(headers=header, governor={"deadline_s": 9}).demand.deadline_us == NOW_US + 1_500_000


@pytest.mark.parametrize("word", ["", "-1", "1.5", "soon", "9" * 30, "999999999", "²"])
def test_a_deadline_header_is_whole_milliseconds(word: str) -> None:
    with pytest.raises(RequestInvalid) as caught:
        chat(headers={"x-governor-deadline-ms": word})
    assert caught.value.param == "x-governor-deadline-ms"


def test_a_priority_at_or_below_the_policys_is_taken() -> None:
    parsed = chat(headers={"x-governor-priority": "Batch"})
    assert parsed.demand.priority is Priority.BATCH
    assert parsed.notes == ()


def test_a_priority_above_the_policys_is_ignored_with_a_note() -> None:
    parsed = chat(headers={"x-governor-priority": "critical"})
    assert parsed.demand.priority is Priority.NORMAL
    assert parsed.notes == ("x-governor-priority is ignored: policy does not allow it",)


def test_an_unknown_priority_is_refused() -> None:
    with pytest.raises(RequestInvalid) as caught:
        chat(headers={"x-governor-priority": "urgent"})
    assert caught.value.param == "x-governor-priority"


# -- extras ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, _ in EXTRAS])
def test_an_extra_is_stripped_and_noted_unless_policy_names_it(name: str) -> None:
    parsed = chat(**{name: {"a": 1}})
    assert name not in parsed.payload
    assert parsed.notes == (f"removed, not allowed by policy: {name}",)
    kept = chat(TenantPolicy(allow_extras=(name,)), **{name: {"a": 1}})
    assert kept.payload[name] == {"a": 1}
    assert kept.notes == ()


def test_the_thinking_part_of_an_extra_stays() -> None:
    parsed = chat(nvext={"max_thinking_tokens": 5, "backend_instance_id": 3})
    assert parsed.payload["nvext"] == {"max_thinking_tokens": 5}
    assert parsed.notes == ("removed, not allowed by policy: nvext",)


def test_a_payload_keeps_what_nobody_knows() -> None:
    assert chat(frobnicate=[1, 2.5]).payload["frobnicate"] == [1, 2.5]
