"""Endless thinking gets an answer: by loop, operator or deadline, in one unbroken stream."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest

from governor.core.plain import from_plain
from governor.core.record import DecisionRecord, disagreements, replay
from governor_probes.tiny_reasoner.task import ENDLESS_FROM_ITEMS, Problem, is_right, make_problem
from tests.running_stack import Answer, Gateway

pytestmark = pytest.mark.slow

CAP_TOKENS = 2048
ENDLESS = "sum q1w2e3r4t5y6u7i8o9p1a2s3"


def problems(seed: int, count: int) -> list[Problem]:
    """Problems that the model checks for ever."""
    rng = Random(seed)
    return [make_problem(rng, rng.randint(ENDLESS_FROM_ITEMS, 12)) for _ in range(count)]


def test_loops_end_in_an_answer_and_the_record_says_so(gateway: Gateway) -> None:
    asked = problems(1, 8)

    def solve(problem: Problem) -> Answer:
        return gateway.stream(
            problem.question, max_completion_tokens=CAP_TOKENS, governor={"explain": True}
        )

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(solve, asked))
    outcomes = [gateway.decision(answer)["outcome"] for answer in answers]
    looped = [o for o in outcomes if (o["cause"], o["landed"]) == ("wrapped_up", "loop")]
    assert len(looped) >= 7, outcomes
    assert all(answer.content for answer in answers)
    right = [is_right(p, a.content) for p, a in zip(asked, answers, strict=True)]
    assert sum(right) >= 6, [(p.answer, a.content) for p, a in zip(asked, answers, strict=True)]
    for answer, outcome in zip(answers, outcomes, strict=True):
        assert_one_stream(answer)
        if outcome in looped:
            assert outcome["landing_path"] == "control"
            assert outcome["loop"]["period_tokens"] > 0
            assert (answer.governor["cause"], answer.governor["landed"]) == ("wrapped_up", "loop")
            # three copies of a pass are enough; nothing near the cap is spent
            assert outcome["reasoning_tokens"] < CAP_TOKENS / 2


def test_without_loop_landing_the_same_problem_runs_into_its_cap(
    gateway: Gateway, as_tenant: Callable[[str], dict[str, str]]
) -> None:
    answer = gateway.stream(
        ENDLESS, max_completion_tokens=700, headers=as_tenant("noloops"), return_token_ids=True
    )
    outcome = gateway.decision(answer)["outcome"]
    assert (outcome["cause"], outcome["landed"]) == ("wrapped_up", "budget_spent")
    assert len(answer.token_ids) <= 700
    assert answer.content


def test_a_decision_replays_to_itself(gateway: Gateway) -> None:
    for asked in (
        {"thinking_token_budget": 64, "max_completion_tokens": 200},
        {"reasoning_effort": "low"},
        {"n": 2},
    ):
        found = gateway.decision(gateway.chat("sum h8s2", **asked))
        record = from_plain(DecisionRecord, found["record"])
        assert record.id == found["decision_id"]
        assert disagreements(record) == ()
        again = replay(record)
        assert (again.outcome, again.worker_id) == (record.result, record.worker_id)
        assert again.candidates == record.candidates
        assert record.worker_id == found["outcome"]["worker"]


def test_an_operator_lands_a_running_request(
    gateway: Gateway, as_tenant: Callable[[str], dict[str, str]]
) -> None:
    headers = as_tenant("noloops")
    with gateway.open(ENDLESS, headers=headers, governor={"explain": True}) as answer:
        answer.read_thinking(200)
        reply = gateway.land(answer)
        assert reply.status_code == 202
        assert reply.json()["decision_id"] == answer.id
        answer.read()
    assert_one_stream(answer)
    assert answer.content
    assert (answer.governor["landed"], answer.governor["landing_path"]) == ("operator", "control")
    outcome = gateway.decision(answer)["outcome"]
    assert (outcome["cause"], outcome["landed"]) == ("wrapped_up", "operator")
    # landed soon after it was asked to, far from what it would have thought
    assert outcome["reasoning_tokens"] < 1_500
    assert gateway.land(answer).status_code == 404


def test_a_tenants_requests_are_nobody_elses_business(
    gateway: Gateway, as_tenant: Callable[[str], dict[str, str]]
) -> None:
    other = as_tenant("keyed")
    with gateway.open(ENDLESS, headers=as_tenant("noloops")) as answer:
        answer.read_thinking(10)
        assert gateway.land(answer, other).status_code == 404
        assert gateway.land(answer, {"authorization": "Bearer gk-wrong"}).status_code == 401
        for path in (f"decisions/{answer.id}", f"requests/{answer.id}/signals"):
            assert gateway.http.get(f"/v1/governor/{path}", headers=other).status_code == 404
        assert gateway.land(answer).status_code == 202
        answer.read()
    path = f"/v1/governor/decisions/{answer.id}"
    assert gateway.decision(answer)["outcome"]["landed"] == "operator"
    assert gateway.http.get(path, headers=other).status_code == 404


def test_landing_what_does_not_run_is_a_404(gateway: Gateway) -> None:
    reply = gateway.land("no-such-request")
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "request_not_running"


@pytest.mark.parametrize("streams", [True, False])
def test_a_deadline_is_met_with_an_answer(
    gateway: Gateway, as_tenant: Callable[[str], dict[str, str]], streams: bool
) -> None:
    # Left alone, this model thinks for some 800 tokens here and then often ends without an answer.
    deadline_s = 1.2
    asked: dict[str, Any] = {
        "headers": as_tenant("noloops"),
        "governor": {"deadline_s": deadline_s, "explain": True},
    }
    answer = gateway.stream(ENDLESS, **asked) if streams else gateway.chat(ENDLESS, **asked)
    # The gateway's own clock; a busy machine may lose some time between two tokens.
    took_ms = gateway.decision(answer)["outcome"]["took_ms"]
    assert took_ms < 1000 * deadline_s + 300
    assert answer.content
    landed = answer.governor["landed"]
    by_time = answer.governor["granted_reason"] == "client_deadline"
    assert landed == "deadline" or (landed == "budget_spent" and by_time)
    # the time was used, not given away
    assert took_ms > 300
    assert answer.governor["used_tokens"] > 50


def test_two_choices_are_relayed_never_landed_and_told_so(gateway: Gateway) -> None:
    answer = gateway.chat(ENDLESS, n=2, max_completion_tokens=400, thinking_token_budget=100)
    assert "n > 1" in answer.headers["x-governor-notes"]
    assert {choice["index"] for choice in answer.choices} == {0, 1}
    outcome = gateway.decision(answer)["outcome"]
    assert outcome["landed"] is None
    with gateway.open(ENDLESS, n=2, max_completion_tokens=100) as stream:
        assert "n > 1" in stream.headers["x-governor-notes"]
        stream.read()
    assert stream.done
    assert {choice["index"] for choice in stream.choices} == {0, 1}


def assert_one_stream(answer: Answer) -> None:
    """One identity, one end, thinking first and never again once the answer has begun."""
    assert answer.done
    assert len({(chunk["id"], chunk["created"]) for chunk in answer.chunks}) == 1
    kinds = [
        "content" if delta.get("content") else "reasoning"
        for delta in (choice["delta"] for choice in answer.choices)
        if delta.get("content") or delta.get("reasoning")
    ]
    assert kinds == sorted(kinds, reverse=True)
    assert [c["finish_reason"] for c in answer.choices if c["finish_reason"]] == ["stop"]
