"""Waiting in the gateway: for how long, for how many, and for whom who left."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.running_stack import Gateway, chat_body, wait_for

pytestmark = pytest.mark.slow

ENDLESS = "sum q1w2e3r4t5y6u7i8o9p1a2s3"

As = Callable[[str], dict[str, str]]


def waiting(gateway: Gateway) -> float:
    return gateway.metrics()["governor_requests_waiting"]


def test_a_request_waits_for_its_turn_and_is_answered(gateway: Gateway, as_tenant: As) -> None:
    headers = as_tenant("single")
    with gateway.open(ENDLESS, headers=headers, max_completion_tokens=500) as first:
        first.read_thinking(1)
        second = gateway.chat("sum h8s2", headers=headers)
        assert second.content == "10"
        assert int(second.headers["x-governor-queue-ms"]) > 0
        first.read()
    assert first.done


def test_a_wait_beyond_the_bound_is_a_typed_refusal_with_a_time_to_come_back(
    gateway: Gateway, as_tenant: As
) -> None:
    headers = as_tenant("impatient")
    with gateway.open(ENDLESS, headers=headers) as first:
        first.read_thinking(1)
        reply = gateway.http.post(
            "/v1/chat/completions", json=chat_body("sum h8s2"), headers=headers
        )
        # What it waited for was a limit of its own tenant.
        assert reply.status_code == 429
        assert reply.json()["error"]["code"] == "tenant_concurrency"
        assert reply.headers["x-governor-reason"] == "tenant_concurrency"
        assert 1 <= int(reply.headers["retry-after"]) <= 60
        assert int(reply.headers["x-governor-queue-ms"]) >= 500
        gateway.land(first)
        first.read()
    outcome = gateway.decision(reply.headers["x-governor-decision"], headers)["outcome"]
    assert (outcome["cause"], outcome["reason"]) == ("refused", "tenant_concurrency")


def test_a_stream_that_waits_long_is_kept_with_comments_and_then_runs(
    gateway: Gateway, as_tenant: As
) -> None:
    headers = as_tenant("patient")
    with gateway.open(ENDLESS, headers=headers) as first:
        first.read_thinking(1)
        with gateway.open("sum h8s2", headers=headers, governor={"explain": True}) as second:
            # It has its status and its decision, and nothing has been asked of a worker yet.
            assert second.headers["content-type"].startswith("text/event-stream")
            assert waiting(gateway) == 1
            gateway.land(first)
            second.read()
        first.read()
    assert second.raw[0].startswith(": queued")
    assert (second.content, second.done) == ("10", True)
    assert second.governor["decision_id"] == second.id
    assert second.governor["queued_ms"] >= 100


def test_a_refusal_after_that_is_a_typed_error_event(gateway: Gateway, as_tenant: As) -> None:
    headers = as_tenant("committed")
    with gateway.open(ENDLESS, headers=headers) as first:
        first.read_thinking(1)
        second = gateway.stream("sum h8s2", headers=headers)
        assert second.chunks[-1]["error"]["code"] == "tenant_concurrency"
        assert second.content == ""
        gateway.land(first)
        first.read()


def test_a_full_queue_refuses_more(gateway: Gateway, as_tenant: As) -> None:
    headers = as_tenant("impatient")
    body = chat_body("sum h8s2")
    with (
        gateway.open(ENDLESS, headers=headers) as first,
        ThreadPoolExecutor(1) as pool,
        httpx.Client(base_url=gateway.url, trust_env=False, timeout=20) as other,
    ):
        first.read_thinking(1)
        # The one that waits holds the queue's only place until its time is over.
        waits = pool.submit(other.post, "/v1/chat/completions", json=body, headers=headers)
        wait_for(lambda: waiting(gateway) == 1, "one waits")
        refused = gateway.http.post("/v1/chat/completions", json=body, headers=headers)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "queue_full"
        assert int(refused.headers["x-governor-queue-ms"]) == 0
        assert int(refused.headers["retry-after"]) >= 1
        assert waits.result().json()["error"]["code"] == "tenant_concurrency"
        gateway.land(first)
        first.read()


def test_a_client_that_leaves_the_queue_is_forgotten(gateway: Gateway, as_tenant: As) -> None:
    headers = as_tenant("single")
    with gateway.open(ENDLESS, headers=headers) as first:
        first.read_thinking(1)
        gone_before = gateway.metrics()["governor_requests_total"]
        with (
            httpx.Client(base_url=gateway.url, trust_env=False, timeout=0.5) as leaver,
            pytest.raises(httpx.ReadTimeout),
        ):
            leaver.post("/v1/chat/completions", json=chat_body("sum h8s2"), headers=headers)
        wait_for(lambda: waiting(gateway) == 0, "the queue is empty")
        # It has ended, while the one that it waited for still runs.
        assert gateway.metrics()["governor_requests_total"] == gone_before + 1
        assert gateway.metrics()["governor_streams_open"] == 1
        gateway.land(first)
        first.read()


def test_a_prompt_that_no_worker_can_hold_is_refused_at_once(gateway: Gateway) -> None:
    body = {"model": "tiny-reasoner", "prompt": [5] * 5_000, "max_tokens": 10}
    reply = gateway.http.post("/v1/completions", json=body)
    assert reply.status_code in (429, 503)
    assert reply.json()["error"]["code"] == "never_fits"
    assert reply.headers["x-should-retry"] == "false"
    assert "retry-after" not in reply.headers
    assert gateway.http.get("/v1/governor/decisions/" + reply.headers["x-governor-decision"])
