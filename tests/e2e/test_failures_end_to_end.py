"""What breaks leaves nothing behind: clients that go, workers that die, a gateway told to stop."""

import contextlib
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.running_stack import START_S, Gateway, Worker, chat_body, wait_for

pytestmark = pytest.mark.slow

ENDLESS = "sum q1w2e3r4t5y6u7i8o9p1a2s3"

As = Callable[[str], dict[str, str]]


@pytest.mark.parametrize("streams", [True, False])
def test_a_client_that_goes_away_stops_its_request(
    gateway: Gateway, fleet: dict[str, Worker], as_tenant: As, streams: bool
) -> None:
    headers = as_tenant("noloops")
    body = chat_body(ENDLESS, stream=streams)
    with httpx.Client(base_url=gateway.url, trust_env=False, timeout=0.7) as client:
        if streams:
            with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as reply:
                next(reply.iter_raw())
                decision_id = reply.headers["x-governor-decision"]
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.post("/v1/chat/completions", json=body, headers=headers)
            decision_id = None
    began = time.monotonic()
    wait_for(lambda: fleet["by1"].idle, "the worker is idle")
    # long before the thinking would have ended by itself
    assert time.monotonic() - began < 3
    if decision_id is not None:
        outcome = gateway.decision(decision_id, headers)["outcome"]
        assert (outcome["cause"], outcome["landed"]) == ("client_gone", None)
    gateway.assert_nothing_held()


@pytest.fixture
def mortal(stack: Any) -> Iterator[Worker]:
    worker = stack.worker("mortal", num_blocks=512)
    wait_for(worker.ready, "the mortal worker is ready", START_S)
    yield worker
    worker.close()


def test_a_worker_that_dies_is_told_and_its_successor_is_used(
    stack: Any, mortal: Worker, fleet: dict[str, Worker]
) -> None:
    gateway = stack.gateway("over-mortal", [mortal], GOVERNOR_SCRAPE_INTERVAL_S="0.2")
    wide = stack.gateway("over-two", [mortal, fleet["by1"]])
    before = epochs(gateway)
    with gateway.open(ENDLESS, headers=stack.bearer("noloops")) as answer:
        answer.read_thinking(20)
        mortal.process.send(signal.SIGKILL)
        answer.read()
    error = answer.chunks[-1]["error"]
    assert (error["type"], error["code"]) == ("upstream_error", "upstream_error")
    assert answer.reasoning
    assert gateway.decision(answer)["outcome"]["cause"] == "upstream_error"
    assert gateway.answers("/healthz")
    assert gateway.metrics()["governor_leases_active"] == 0
    reply = gateway.http.post("/v1/chat/completions", json=chat_body("sum h8s2"))
    assert reply.status_code in (502, 503)
    assert reply.json()["error"]["code"]
    # Where there is another worker nobody notices: before the first byte it is tried elsewhere.
    for _ in range(6):
        assert wide.chat("sum h8s2").content == "10"
    assert wide.metrics()["governor_leases_active"] == 0
    successor = Worker(mortal.process.log, port=mortal.port, num_blocks=512)
    try:
        wait_for(successor.ready, "the successor is ready", START_S)
        wait_for(lambda: answered(gateway), "the successor is used")
        for each in (gateway, wide):
            wait_for(each.ready, "it is fresh and signals")
        assert epochs(gateway) != before
        assert gateway.chat("sum a1b2").content == "3"
        for each in (gateway, wide):
            each.assert_nothing_held()
    finally:
        successor.close()
    for each in (gateway, wide):
        each.close()


def epochs(gateway: Gateway) -> list[str]:
    """The lives of the gateway's workers."""
    workers = gateway.http.get("/v1/governor/capabilities").json()["workers"]
    return [state["epoch"] for state in workers.values()]


def answered(gateway: Gateway) -> bool:
    reply = gateway.http.post("/v1/chat/completions", json=chat_body("sum h8s2"))
    return reply.status_code == 200


def test_a_gateway_told_to_stop_finishes_its_streams(stack: Any, fleet: dict[str, Worker]) -> None:
    gateway = stack.gateway("stopping", [fleet["by1"]])
    headers = stack.bearer("noloops")
    with contextlib.ExitStack() as opened:
        answers = [
            opened.enter_context(gateway.open(ENDLESS, headers=headers, max_completion_tokens=400))
            for _ in range(3)
        ]
        for answer in answers:
            answer.read_thinking(1)
        gateway.process.send(signal.SIGTERM)
        wait_for(lambda: refuses_connections(gateway.port), "new connections are refused")
        for answer in answers:
            answer.read()
    for answer in answers:
        assert answer.done
        assert answer.content
    assert gateway.process.wait() == 0
    wait_for(lambda: fleet["by1"].idle, "the worker is idle")


def test_streams_that_outlast_the_drain_end_with_a_typed_error(
    stack: Any, fleet: dict[str, Worker]
) -> None:
    gateway = stack.gateway("hasty", [fleet["by1"]], GOVERNOR_DRAIN_TIMEOUT_S="1")
    with gateway.open(ENDLESS, headers=stack.bearer("noloops")) as answer:
        answer.read_thinking(1)
        gateway.process.send(signal.SIGTERM)
        answer.read()
    assert answer.chunks[-1]["error"]["message"]
    assert not answer.done
    assert gateway.process.wait() == 0
    wait_for(lambda: fleet["by1"].idle, "the worker is idle")


def refuses_connections(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return False
    except ConnectionRefusedError:
        return True
