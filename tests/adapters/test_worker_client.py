"""WorkerClient against a real server: join with and without the contract, scrape, control, faults
typed."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from governor.adapters.worker_client import WorkerClient
from governor.core.errors import (
    UpstreamConnectFailed,
    UpstreamFailed,
    UpstreamProtocolError,
    UpstreamReadFailed,
    UpstreamTimeout,
)
from governor.core.signals import Control, ControlOp, ControlStatus
from governor.core.worker_facts import WorkerScrape
from tests.fake_worker import FakeConnection, FakeRequest, FakeWorker, routes, within

METRICS = (Path(__file__).parent.parent / "data" / "vllm_metrics.txt").read_bytes()
MODELS = {"object": "list", "data": [{"id": "m", "object": "model", "max_model_len": 4096}]}
INFO = {
    "schema": "governor.info/1",
    "worker_epoch": "1700000000-1",
    "features": ["signals", "land", "thinking_token_budget"],
    "think_start_ids": [1],
    "think_end_ids": [2],
    "wrap_up_text": "\n</think>\n\n",
    "wrap_up_ids": [3, 2, 3],
    "block_size": 16,
    "num_blocks": 512,
    "max_model_len": 4096,
    "max_num_seqs": 64,
    "kv_bytes_per_token": 1024,
    "stream_interval": 1,
}
LAND = Control("r1", 0, ControlOp.LAND, {"grace_tokens": 8, "text": None, "reason": "loop"}, 3)
ACK = {
    "schema": "governor.control/1",
    "rid": "r1",
    "attempt": 0,
    "fence": 3,
    "status": "applied",
    "position": 40,
    "detail": None,
}


async def with_client(
    answers: dict[str, Any], use: Callable[[WorkerClient], Awaitable[Any]], **options: Any
) -> tuple[Any, FakeWorker]:
    async with FakeWorker(routes(answers)) as worker:
        client = WorkerClient(worker.url, **options)
        try:
            return await within(use(client)), worker
        finally:
            await client.close()


async def test_a_worker_with_the_contract_says_what_it_can() -> None:
    answers = {"/v1/models": MODELS, "/governor/v1/info": INFO}
    info, worker = await with_client(answers, WorkerClient.join, key="secret")
    assert info.worker_epoch == "1700000000-1"
    assert info.models == ("m",)
    assert info.features == {"signals", "land", "thinking_token_budget"}
    assert (info.think_start_ids, info.think_end_ids, info.wrap_up_ids) == ((1,), (2,), (3, 2, 3))
    assert (info.block_size, info.num_blocks, info.max_num_seqs) == (16, 512, 64)
    assert info.model_cards == tuple(MODELS["data"])
    assert {r.headers["authorization"] for r in worker.requests} == {"Bearer secret"}


async def test_a_worker_without_the_contract_is_known_by_its_routes() -> None:
    answers = {"/v1/models": MODELS, "/metrics": METRICS}
    info, worker = await with_client(answers, WorkerClient.join)
    assert info.worker_epoch == "1796083112.89"
    assert info.features == {"return_token_ids"}
    assert (info.block_size, info.num_blocks, info.max_model_len) == (128, 4096, 4096)
    assert (info.think_end_ids, info.wrap_up_text, info.max_num_seqs) == ((), None, None)
    assert "authorization" not in worker.requests[0].headers


async def test_a_worker_without_metrics_is_unknown_and_not_empty() -> None:
    info, _ = await with_client({"/v1/models": MODELS}, WorkerClient.join)
    assert (info.worker_epoch, info.num_blocks, info.features) == ("unknown", None, frozenset())
    scrape, _ = await with_client({}, WorkerClient.scrape)
    assert scrape == WorkerScrape()


async def test_a_scrape_reads_the_metrics() -> None:
    scrape, _ = await with_client({"/metrics": METRICS}, WorkerClient.scrape)
    assert (scrape.running, scrape.num_blocks) == (0, 4096)


async def test_a_model_card_with_an_odd_length_is_read_without_it() -> None:
    cards = {"data": [{"id": "a", "max_model_len": "4096"}, {"id": "b", "max_model_len": 0}]}
    info, _ = await with_client({"/v1/models": cards}, WorkerClient.join)
    assert info.models == ("a", "b")
    assert info.max_model_len is None


@pytest.mark.parametrize(
    "answers",
    [
        {"/v1/models": 500},
        {"/v1/models": 404},
        {"/v1/models": {"data": "no"}},
        {"/v1/models": {"data": [{"name": "m"}]}},
        {"/v1/models": [1]},
        {"/v1/models": b"<html>"},
        {"/v1/models": b"[" * 100_000},
        {"/v1/models": MODELS, "/governor/v1/info": {"worker_epoch": "x"}},
        {"/v1/models": MODELS, "/governor/v1/info": {**INFO, "num_blocks": None}},
        {"/v1/models": MODELS, "/governor/v1/info": 503},
        {"/v1/models": MODELS, "/metrics": b"<html>"},
        {"/v1/models": MODELS, "/metrics": 500},
    ],
)
async def test_what_cannot_be_understood_is_a_typed_error(answers: dict[str, Any]) -> None:
    with pytest.raises(UpstreamProtocolError):
        await with_client(answers, WorkerClient.join)


async def test_several_engines_behind_one_url_cannot_join() -> None:
    two = METRICS + b'vllm:num_requests_running{engine="1"} 1\n'
    with pytest.raises(UpstreamProtocolError, match="several engines"):
        await with_client({"/v1/models": MODELS, "/metrics": two}, WorkerClient.join)


async def test_an_instruction_is_delivered_and_acknowledged() -> None:
    ack, worker = await with_client({"/governor/v1/control": ACK}, lambda c: c.control(LAND))
    assert (ack.status, ack.position, ack.fence) == (ControlStatus.APPLIED, 40, 3)
    (sent,) = worker.requests
    assert sent.method == "POST"
    assert sent.json() == {
        "schema": "governor.control/1",
        "rid": "r1",
        "attempt": 0,
        "op": "land",
        "arg": {"grace_tokens": 8, "text": None, "reason": "loop"},
        "fence": 3,
    }


async def test_an_instruction_is_repeated_once_where_the_connection_broke() -> None:
    async def breaks_first(_: FakeRequest, connection: FakeConnection) -> None:
        if connection.number == 0:
            connection.drop()
        else:
            await connection.send_json(ACK)

    answers = {"/governor/v1/control": breaks_first}
    ack, worker = await with_client(answers, lambda c: c.control(LAND))
    assert ack.status is ControlStatus.APPLIED
    assert len({request.body for request in worker.requests}) == 1
    assert len(worker.requests) == 2


async def test_an_instruction_is_not_repeated_for_ever() -> None:
    async def breaks(_: FakeRequest, connection: FakeConnection) -> None:
        connection.drop()

    async with FakeWorker(routes({"/governor/v1/control": breaks})) as worker:
        client = WorkerClient(worker.url)
        with pytest.raises(UpstreamReadFailed):
            await within(client.control(LAND))
        await client.close()
    assert len(worker.requests) == 2


async def test_an_instruction_that_got_no_answer_in_time_is_not_repeated() -> None:
    async def silent(_: FakeRequest, connection: FakeConnection) -> None:
        await connection.until_gone()

    async with FakeWorker(routes({"/governor/v1/control": silent})) as worker:
        client = WorkerClient(worker.url, control_timeout_s=0.05)
        with pytest.raises(UpstreamTimeout):
            await within(client.control(LAND))
        await client.close()
    assert len(worker.requests) == 1


@pytest.mark.parametrize("answer", [500, 404, {}, {**ACK, "fence": None}, b"ok"])
async def test_an_answer_that_is_none_is_a_typed_error(answer: Any) -> None:
    with pytest.raises(UpstreamProtocolError):
        await with_client({"/governor/v1/control": answer}, lambda c: c.control(LAND))


async def test_a_worker_that_is_not_there_is_a_failed_connection() -> None:
    async with FakeWorker(routes({})) as worker:
        url = worker.url
    client = WorkerClient(url)
    for call in (client.join(), client.scrape(), client.control(LAND)):
        with pytest.raises(UpstreamConnectFailed):
            await within(call)
    await client.close()


async def test_a_worker_that_is_silent_times_out() -> None:
    async def silent(_: FakeRequest, connection: FakeConnection) -> None:
        await connection.until_gone()

    with pytest.raises(UpstreamTimeout):
        await with_client({"/metrics": silent}, WorkerClient.scrape, timeout_s=0.05)


async def test_calls_of_several_tasks_do_not_mix() -> None:
    answers = {"/v1/models": MODELS, "/governor/v1/info": INFO, "/metrics": METRICS}

    async def many(client: WorkerClient) -> list[Any]:
        calls = [client.join() if n % 2 else client.scrape() for n in range(20)]
        return list(await asyncio.gather(*calls))

    found, _ = await with_client(answers, many)
    assert {type(item).__name__ for item in found[::2]} == {"WorkerScrape"}
    assert {item.worker_epoch for item in found[1::2]} == {"1700000000-1"}


def test_every_error_of_the_client_is_one_kind() -> None:
    kinds = (UpstreamConnectFailed, UpstreamReadFailed, UpstreamTimeout, UpstreamProtocolError)
    assert all(issubclass(kind, UpstreamFailed) for kind in kinds)
