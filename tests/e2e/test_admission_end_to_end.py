"""64 requests at once on a KV pool for 16: nothing lost, no preemption; without admission it is."""

import asyncio
import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import httpx
import pytest

from governor_probes.tiny_reasoner.task import Problem, is_right, make_problems
from tests.running_stack import START_S, Gateway, Worker, chat_body, wait_for

pytestmark = pytest.mark.slow

REQUESTS = 64
# Each may hold 14 blocks of 16 tokens: 30 tokens of prompt, 192 of output. Most need half of that.
POOL_BLOCKS = 16 * 14
LIMITS = {"thinking_token_budget": 160, "max_completion_tokens": 192}


@pytest.fixture(scope="module")
def small_worker(stack: Any) -> Iterator[Worker]:
    worker = stack.worker("small", num_blocks=POOL_BLOCKS)
    wait_for(worker.ready, "the small worker is ready", START_S)
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def admitting(stack: Any, small_worker: Worker) -> Iterator[Gateway]:
    gateway = stack.gateway("admitting", [small_worker], GOVERNOR_SCRAPE_INTERVAL_S="0.2")
    yield gateway
    gateway.close()


async def ask_all(gateway: Gateway, problems: list[Problem]) -> list[httpx.Response]:
    """All at once; answers in the order of the problems."""
    limits = httpx.Limits(max_connections=REQUESTS)
    async with httpx.AsyncClient(
        base_url=gateway.url, timeout=90, limits=limits, trust_env=False
    ) as client:
        return await asyncio.gather(
            *(
                client.post("/v1/chat/completions", json=chat_body(problem.question, **LIMITS))
                for problem in problems
            )
        )


def problems() -> list[Problem]:
    return make_problems(Random(64), REQUESTS, 9)


def test_a_crowd_is_admitted_in_turn_without_preemption(
    admitting: Gateway, small_worker: Worker
) -> None:
    asked = problems()
    replies = asyncio.run(ask_all(admitting, asked))
    assert [reply.status_code for reply in replies] == [200] * REQUESTS
    contents = [reply.json()["choices"][0]["message"]["content"] for reply in replies]
    right = [is_right(problem, content) for problem, content in zip(asked, contents, strict=True)]
    assert sum(right) >= 0.95 * REQUESTS
    found = small_worker.metrics()
    assert found["vllm:num_preemptions_total"] == 0
    assert found["vllm:request_success_total"] == REQUESTS
    # They waited in the gateway, where they can be reordered, and not in the worker.
    waits = [int(reply.headers["x-governor-queue-ms"]) for reply in replies]
    assert sum(wait > 0 for wait in waits) > REQUESTS / 2
    assert admitting.metrics()["governor_leases_active"] == 0
    admitting.assert_nothing_held()


def test_without_admission_the_same_crowd_preempts(
    stack: Any, admitting: Gateway, small_worker: Worker
) -> None:
    before = small_worker.metrics()["vllm:num_preemptions_total"]
    gateway = stack.gateway("unadmitting", [small_worker], "--no-admission")
    replies = asyncio.run(ask_all(gateway, problems()))
    assert [reply.status_code for reply in replies] == [200] * REQUESTS
    assert small_worker.metrics()["vllm:num_preemptions_total"] > before
    gateway.assert_nothing_held()
    gateway.close()


def test_a_critical_request_does_not_wait_behind_batch_work(
    stack: Any, admitting: Gateway, as_tenant: Callable[[str], dict[str, str]]
) -> None:
    async def run() -> tuple[int, int]:
        ended = 0

        async def batch(client: httpx.AsyncClient, problem: Problem) -> None:
            nonlocal ended
            headers = {"x-governor-priority": "batch"}
            body = chat_body(problem.question, **LIMITS)
            reply = await client.post("/v1/chat/completions", json=body, headers=headers)
            assert reply.status_code == 200, reply.text
            ended += 1

        limits = httpx.Limits(max_connections=REQUESTS)
        async with httpx.AsyncClient(
            base_url=admitting.url, timeout=90, limits=limits, trust_env=False
        ) as client:
            tasks = [asyncio.create_task(batch(client, p)) for p in problems()[:48]]
            while admitting.readiness()["waiting"] < 16:
                assert not all(task.done() for task in tasks)
                await asyncio.sleep(0.02)
            waiting = admitting.readiness()["waiting"]
            before = ended
            body = chat_body("sum h8s2", **LIMITS)
            reply = await client.post("/v1/chat/completions", json=body, headers=as_tenant("first"))
            assert json.loads(reply.content)["choices"][0]["message"]["content"].strip() == "10"
            overtook = waiting - (ended - before)
            await asyncio.gather(*tasks)
            return overtook, waiting

    overtook, waiting = asyncio.run(run())
    assert overtook > waiting / 2
    admitting.assert_nothing_held()
