"""What a worker is sent: the grant on each path, and everything of the client's that stays."""

import copy
import json
from typing import Any

import pytest

from governor.core.budget import BudgetGrant
from governor.core.outcomes import GrantReason, LandingPath, Strictness
from governor.core.policy import TenantPolicy
from governor.gateway.wire import ParsedRequest, parse, upstream_body

CHAT = "/v1/chat/completions"
NATIVE = frozenset({"thinking_token_budget"})
GRACE = NATIVE | {"grace"}


def parsed_of(
    path: str = CHAT, policy: TenantPolicy | None = None, **members: Any
) -> ParsedRequest:
    prompt: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}
    if path != CHAT:
        prompt = {"prompt": "hello"}
    return parse(
        path,
        json.dumps({"model": "m", **prompt, **members}).encode(),
        {},
        decision_id="d-1",
        policy=policy or TenantPolicy(),
        now_us=0,
        prompt_tokens_estimate=lambda model, text_bytes: text_bytes,
        thinks=lambda model: True,
    )


def grant_of(
    tokens: int | None = 100,
    strictness: Strictness = Strictness.CAP,
    reason: GrantReason = GrantReason.CLIENT_BUDGET,
    grace: int = 20,
) -> BudgetGrant:
    off = tokens == 0
    return BudgetGrant(
        thinking_tokens=tokens,
        grace_tokens=0 if off else grace,
        wrap_up_tokens=0 if off else 6,
        answer_reserve_tokens=32,
        completion_tokens=None,
        reason=GrantReason.THINKING_OFF if off else reason,
        strictness=strictness,
        asked_tokens=tokens,
        floor_tokens=None,
        thinking_off=off,
    )


def sent(
    parsed: ParsedRequest,
    grant: BudgetGrant | None = None,
    *,
    features: frozenset[str] = NATIVE,
    path: LandingPath = LandingPath.NATIVE,
    asks_token_ids: bool = False,
    governed: bool = True,
) -> dict[str, Any]:
    before = copy.deepcopy(parsed.payload)
    body = upstream_body(
        parsed,
        grant,
        features=features,
        rid="d-1.0",
        budget_path=path,
        asks_token_ids=asks_token_ids,
        governed=governed,
    )
    assert parsed.payload == before, "a retry would start from a changed payload"
    made = json.loads(body)
    assert isinstance(made, dict)
    return made


EVERY_DIALECT: dict[str, Any] = {
    "thinking_token_budget": 500,
    "thinking_budget": 500,
    "thinking_budget_tokens": 500,
    "enable_thinking": True,
    "thinking": {"type": "enabled", "budget_tokens": 500},
    "reasoning": {"max_tokens": 500},
    "output_config": {"effort": "high", "format": "text"},
    "thinkingConfig": {"thinkingBudget": 500},
    "generationConfig": {"thinkingConfig": {"thinkingBudget": 500}, "topK": 3},
    "nvext": {"max_thinking_tokens": 500},
    "custom_params": {"thinking_budget": 500},
    "chat_template_kwargs": {"thinking_budget": 500, "enable_thinking": True, "custom": 1},
}


def test_a_grant_replaces_every_dialect() -> None:
    body = sent(parsed_of(**EVERY_DIALECT), grant_of())
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "output_config": {"format": "text"},
        "generationConfig": {"topK": 3},
        "chat_template_kwargs": {"custom": 1, "enable_thinking": True},
        "reasoning_effort": "high",
        "thinking_token_budget": 94,
        "request_id": "d-1.0",
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize(
    ("strictness", "features", "budget", "grace"),
    [
        pytest.param(Strictness.CAP, NATIVE, 94, None, id="cap"),
        pytest.param(Strictness.PROVEN, NATIVE, 94, None, id="proven"),
        pytest.param(Strictness.HINT, NATIVE, 100, None, id="hint"),
        pytest.param(Strictness.CAP, GRACE, 94, 20, id="cap-grace"),
        pytest.param(Strictness.PROVEN, GRACE, 94, 20, id="proven-grace"),
        pytest.param(Strictness.HINT, GRACE, 120, 20, id="hint-grace"),
    ],
)
def test_the_native_path_carries_budget_and_grace(
    strictness: Strictness, features: frozenset[str], budget: int, grace: int | None
) -> None:
    body = sent(parsed_of(), grant_of(100, strictness), features=features)
    assert body["thinking_token_budget"] == budget
    wanted = None if grace is None else {"governor_grace_tokens": grace}
    assert body.get("vllm_xargs") == wanted


def test_grace_joins_extras_that_policy_allows() -> None:
    policy = TenantPolicy(allow_extras=("vllm_xargs",))
    parsed = parsed_of(policy=policy, vllm_xargs={"own": 1, "governor_grace_tokens": 9})
    body = sent(parsed, grant_of(), features=GRACE)
    assert body["vllm_xargs"] == {"own": 1, "governor_grace_tokens": 20}


@pytest.mark.parametrize(("asked", "kept"), [(500, "least"), (10, 10)])
def test_where_nothing_can_be_enforced_the_clients_own_number_stays(
    asked: int, kept: int | str
) -> None:
    grant = grant_of()
    parsed = parsed_of(
        thinking_token_budget=asked, thinking={"type": "enabled", "budget_tokens": 90}
    )
    body = sent(parsed, grant, features=frozenset(), path=LandingPath.NONE)
    most = grant.engine_budget_tokens
    assert most is not None
    assert body["thinking_token_budget"] == (min(asked, most) if kept == "least" else kept)
    assert body["thinking"] == {"type": "enabled", "budget_tokens": min(90, most)}
    assert "vllm_xargs" not in body


def test_where_nothing_can_be_enforced_no_member_is_invented() -> None:
    body = sent(parsed_of(), grant_of(), features=frozenset(), path=LandingPath.NONE)
    assert "thinking_token_budget" not in body


@pytest.mark.parametrize("path", [LandingPath.CONTROL, LandingPath.SPLICE])
def test_other_paths_carry_no_budget(path: LandingPath) -> None:
    body = sent(parsed_of(thinking_token_budget=500), grant_of(), features=GRACE, path=path)
    assert "thinking_token_budget" not in body
    assert "vllm_xargs" not in body


def test_a_grant_without_a_limit_sends_none() -> None:
    body = sent(parsed_of(), grant_of(None, reason=GrantReason.UNLIMITED), features=GRACE)
    assert "thinking_token_budget" not in body


@pytest.mark.parametrize(
    ("features", "budget"), [(NATIVE, 0), (frozenset(), None)], ids=["engine-budget", "template"]
)
def test_thinking_off_goes_by_template_and_budget(
    features: frozenset[str], budget: int | None
) -> None:
    parsed = parsed_of(enable_thinking=True, chat_template_kwargs={"custom": 1, "thinking": True})
    body = sent(parsed, grant_of(0), features=features, path=LandingPath.NONE)
    assert body["chat_template_kwargs"] == {
        "custom": 1,
        "enable_thinking": False,
        "thinking": False,
    }
    assert body.get("thinking_token_budget") == budget
    assert "vllm_xargs" not in body


def test_thinking_switched_on_stays_on() -> None:
    """Some templates think only on request."""
    in_template = parsed_of(chat_template_kwargs={"thinking": True})
    assert sent(in_template, grant_of())["chat_template_kwargs"] == {"thinking": True}
    on_top = parsed_of(thinking={"type": "enabled", "budget_tokens": 500})
    assert sent(on_top, grant_of())["chat_template_kwargs"] == {"enable_thinking": True}
    assert "chat_template_kwargs" not in sent(parsed_of(), grant_of())


@pytest.mark.parametrize(
    ("members", "forwarded"),
    [
        ({"reasoning_effort": "low"}, "low"),
        ({"reasoning": {"effort": "low"}}, "low"),
        ({"reasoning_effort": "none"}, None),
        ({}, None),
    ],
)
def test_an_effort_reaches_templates_unless_none(
    members: dict[str, Any], forwarded: str | None
) -> None:
    assert sent(parsed_of(**members), grant_of()).get("reasoning_effort") == forwarded


def test_an_effort_of_none_leaves_the_templates_arguments_too() -> None:
    body = sent(parsed_of(chat_template_kwargs={"reasoning_effort": "none"}), grant_of())
    assert "chat_template_kwargs" not in body
    kept = sent(parsed_of(chat_template_kwargs={"reasoning_effort": "low"}), grant_of())
    assert kept["chat_template_kwargs"] == {"reasoning_effort": "low"}
    assert "reasoning_effort" not in kept


@pytest.mark.parametrize(
    ("grant", "governed"),
    [
        pytest.param(None, True, id="no-grant"),
        pytest.param(grant_of(), False, id="not-governed"),
        pytest.param(grant_of(None, reason=GrantReason.NOT_GOVERNED), True, id="cannot-bind"),
    ],
)
def test_without_a_binding_grant_the_clients_words_stay(
    grant: BudgetGrant | None, governed: bool
) -> None:
    parsed = parsed_of(**EVERY_DIALECT, reasoning_effort="none", governor={"explain": True})
    body = sent(parsed, grant, governed=governed, features=GRACE)
    assert {name: body[name] for name in EVERY_DIALECT} == EVERY_DIALECT
    assert body["reasoning_effort"] == "none"
    assert "governor" not in body
    assert "vllm_xargs" not in body


def test_raw_completions_keep_their_words() -> None:
    body = sent(parsed_of("/v1/completions", thinking_token_budget=5), grant_of(0))
    assert body["thinking_token_budget"] == 5
    assert "chat_template_kwargs" not in body


def test_governor_is_never_forwarded() -> None:
    assert "governor" not in sent(parsed_of(governor={"budget_tokens": 3}), grant_of())


def test_one_choice_always_streams_with_usage() -> None:
    body = sent(parsed_of(stream=False))
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})
    options = {"include_usage": False, "continuous_usage_stats": True}
    body = sent(parsed_of(stream=True, stream_options=options))
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


def test_several_choices_stream_only_if_the_client_does() -> None:
    body = sent(parsed_of(n=2))
    assert "stream" not in body
    assert "stream_options" not in body
    body = sent(parsed_of(n=2, stream=True))
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})


def test_token_ids_are_asked_for_when_needed() -> None:
    assert "return_token_ids" not in sent(parsed_of())
    assert sent(parsed_of(), asks_token_ids=True)["return_token_ids"] is True
    assert sent(parsed_of(return_token_ids=True))["return_token_ids"] is True


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_the_completion_limit_keeps_its_name(name: str) -> None:
    body = sent(parsed_of(**{name: 77}), grant_of())
    assert {key: body[key] for key in body if key.startswith("max_")} == {name: 77}


def test_the_workers_request_id_is_ours() -> None:
    policy = TenantPolicy(allow_extras=("request_id",))
    assert sent(parsed_of(policy=policy, request_id="mine"))["request_id"] == "d-1.0"


def test_numbers_go_upstream_as_they_came() -> None:
    body = sent(parsed_of(seed=2**70, top_p=0.1, temperature=1))
    assert (body["seed"], body["top_p"]) == (2**70, 0.1)
    assert type(body["temperature"]) is int
