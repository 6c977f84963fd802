"""Per tenant, by policy: how much acts (off, observe, shadow), and where the thinking comes."""

from collections.abc import Callable
from typing import Any

import pytest

from governor.core.outcomes import Outcome, Reason
from governor.core.plain import from_plain
from governor.core.record import DecisionRecord, disagreements, replay
from tests.running_stack import Gateway

pytestmark = pytest.mark.slow

QUESTION = "sum h8s2k9a1b2c3d4e5"
BUDGET = 40

As = Callable[[str], dict[str, str]]


@pytest.mark.parametrize("mode", ["off", "observe", "shadow"])
@pytest.mark.parametrize("streams", [True, False])
def test_a_tenant_that_is_not_enforced_is_never_landed(
    gateway: Gateway, as_tenant: As, mode: str, streams: bool
) -> None:
    free = gateway.chat(QUESTION)
    asked: dict[str, Any] = {"headers": as_tenant(mode), "stream_options": {"include_usage": True}}
    if not streams:
        del asked["stream_options"]
    answer = (gateway.stream if streams else gateway.chat)(QUESTION, **asked)
    assert (answer.reasoning, answer.content) == (free.reasoning, free.content)
    assert answer.usage["completion_tokens_details"]["reasoning_tokens"] > BUDGET
    assert answer.headers["x-governor-mode"] == mode
    assert answer.headers.get("x-governor-budget-path", "none") == "none"
    outcome = gateway.decision(answer)["outcome"]
    assert (outcome["cause"], outcome["landed"]) == ("completed", None)


def test_shadow_records_what_would_have_been(gateway: Gateway, as_tenant: As) -> None:
    answer = gateway.chat(QUESTION, headers=as_tenant("shadow"))
    found = gateway.decision(answer)
    grant, record = found["record"]["grant"], found["record"]
    # forty, or the floor below which a cut breaks more than it saves
    assert grant["reason"] in ("policy_default", "safe_cut_floor")
    assert grant["thinking_tokens"] >= BUDGET
    assert record["policy"]["mode"] == "shadow"
    # It was let through because nothing is enforced; replayed, admission says what it would have.
    assert (record["result"], record["reason"]) == ("admit", "admission_off")
    kept = from_plain(DecisionRecord, record)
    assert disagreements(kept) == ("reason",)
    assert (replay(kept).outcome, replay(kept).reason) == (Outcome.ADMIT, Reason.FITS)
    assert found["outcome"]["reasoning_tokens"] > grant["thinking_tokens"]


def test_the_same_budget_enforced_lands(gateway: Gateway, as_tenant: As) -> None:
    answer = gateway.chat(QUESTION, thinking_token_budget=BUDGET, headers=as_tenant("small"))
    outcome = gateway.decision(answer)["outcome"]
    assert (outcome["cause"], outcome["landed"]) == ("wrapped_up", "budget_spent")
    assert outcome["reasoning_tokens"] <= BUDGET


@pytest.mark.parametrize(
    ("tenant", "members"),
    [
        ("renamed", {"reasoning_content"}),
        ("both", {"reasoning", "reasoning_content"}),
        ("default", {"reasoning"}),
    ],
)
def test_thinking_comes_in_the_members_that_policy_names(
    gateway: Gateway, as_tenant: As, tenant: str, members: set[str]
) -> None:
    free = gateway.chat(QUESTION)
    headers = as_tenant(tenant)
    names = ("reasoning", "reasoning_content")
    stream = gateway.stream(QUESTION, headers=headers)
    for delta in (choice["delta"] for choice in stream.choices):
        present = {name for name in names if delta.get(name)}
        assert present in (set(), members)
    assert {name for name in names if stream.text(name)} == members
    assert all(stream.text(name) == free.reasoning for name in members)
    assert stream.content == free.content
    message = gateway.chat(QUESTION, headers=headers).choices[0]["message"]
    assert {name for name in names if message.get(name)} == members
    assert all(message[name] == free.reasoning for name in members)
    # other members stay those of the worker, and nothing of the gateway's own is added
    assert all(set(chunk) <= {*stream.chunks[0], "usage"} for chunk in stream.chunks)
    assert "token_ids" not in "".join(stream.raw).replace("prompt_token_ids", "")


def test_the_governor_block_is_there_only_for_who_asks(gateway: Gateway) -> None:
    assert "governor" not in (gateway.chat("sum h8s2").whole or {})
    block = gateway.chat("sum h8s2", governor={"explain": True}).governor
    assert {"asked_tokens", "granted_tokens", "budget_path", "used_tokens", "cause", "landed"} <= (
        set(block)
    )
    assert {"queued_ms", "forecast_p50_tokens", "decision_id"} <= set(block)
