"""Relay, StreamMachine and UpstreamPool against a scripted worker: every byte, every fault of
worker and client, one account."""

import asyncio
import json

import pytest

from governor.core.outcomes import Cause
from tests.fake_worker import FakeConnection, FakeRequest, Script, until
from tests.gateway_streams import EVENTS, WHOLE, drops, sends, silent, stops_after
from tests.relay_rig import body_of, rig

# -- an ordinary stream ---------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 50, 10**9])
async def test_the_client_gets_the_workers_bytes_whatever_the_reads(size: int) -> None:
    async with rig(sends(size=size)) as r, r.client() as client:
        await client.request()
        response = await client.response()
        assert response.status == 200
        assert response.body == WHOLE
        assert response.headers["content-type"] == "text/event-stream"
        assert response.headers["x-governor-decision"] == "r1"
        report = await r.report()
        assert report.cause is Cause.COMPLETED
        assert report.answered
        assert (r.hooks.retries, r.hooks.faults) == ([], [])


async def test_connections_to_the_worker_are_kept_and_used_again() -> None:
    async with rig(sends()) as r, r.client() as client:
        for number in range(3):
            await client.request()
            assert await body_of(client) == WHOLE
            await r.report(number)
        assert len(r.worker.connections) == 1
        assert len(r.worker.requests) == 3
        assert r.worker.requests[0].body == b"{}"


async def test_each_event_reaches_the_client_before_the_next_is_sent() -> None:
    step = asyncio.Semaphore(0)

    async def script(_: FakeRequest, connection: FakeConnection) -> None:
        await connection.start_stream()
        for event in EVENTS:
            await step.acquire()
            await connection.chunk(event)
        await connection.end_stream()

    async with rig(script) as r, r.client() as client:
        await client.request()
        assert (await client.head()).status == 200
        for event in EVENTS:
            step.release()
            assert await client.chunk() == event
        assert await client.chunk() == b""


async def test_a_client_that_does_not_stream_gets_one_body() -> None:
    async with rig(sends(size=11)) as r, r.client() as client:
        r.changes = {"client_streams": False}
        await client.request()
        response = await client.response()
        assert response.headers["content-type"] == "application/json"
        message = json.loads(response.body)["choices"][0]["message"]
        assert message["content"] == "42"
        assert (await r.report()).cause is Cause.COMPLETED


async def test_other_paths_are_passed_on_unread() -> None:
    async def script(_: FakeRequest, connection: FakeConnection) -> None:
        await connection.send_body(b"\x00\xff raw", 404, "application/octet-stream")

    async with rig(script) as r, r.client() as client:
        r.changes = {"relay_only": True}
        await client.request()
        response = await client.response()
        assert (response.status, response.body) == (404, b"\x00\xff raw")
        assert (await r.report()).cause is Cause.COMPLETED


# -- faults of the worker -------------------------------------------------------------------------


async def test_a_worker_that_dies_in_mid_stream_ends_in_a_typed_error_event() -> None:
    async with rig(stops_after(4, FakeConnection.drop), sends()) as r, r.client() as client:
        await client.request()
        body = await body_of(client)
        assert body.startswith(b"".join(EVENTS[:4]))
        error = json.loads(body.rpartition(b"data: ")[2])["error"]
        assert (error["type"], error["code"]) == ("upstream_error", "upstream_error")
        assert (await r.report()).cause is Cause.UPSTREAM_ERROR
        assert r.hooks.retries == []
        assert r.workers[1].requests == [], "what was begun is not begun again"


@pytest.mark.parametrize("how", [drops, stops_after(0, FakeConnection.drop)])
async def test_a_worker_that_dies_before_the_client_was_told_is_replaced(how: Script) -> None:
    async with rig(how, sends()) as r, r.client() as client:
        r.changes = {"client_streams": False}
        await client.request()
        assert json.loads(await body_of(client))["choices"][0]["message"]["content"] == "42"
        assert (await r.report()).cause is Cause.COMPLETED
        ((_, status, timed_out),) = r.hooks.retries
        assert (status, timed_out) == (None, False)


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_busy_worker_is_replaced_and_its_connection_kept(status: int) -> None:
    async def busy(_: FakeRequest, connection: FakeConnection) -> None:
        await connection.send_json({"error": "busy"}, status)

    async with rig(busy, sends()) as r, r.client() as client:
        for number in range(2):
            await client.request()
            assert await body_of(client) == WHOLE
            await r.report(number)
        assert [retry[1] for retry in r.hooks.retries] == [status, status]
        assert len(r.worker.connections) == 1


async def test_when_nobody_answers_there_is_one_refusal_and_no_account_of_a_stream() -> None:
    async with rig(drops, drops) as r, r.client() as client:
        await client.request()
        assert (await client.response()).status == 502
        assert len(r.hooks.retries) == 2
        assert r.hooks.reports == []


async def test_a_refusal_of_the_worker_that_is_the_clients_own_fault_is_passed_on() -> None:
    async def refuses(_: FakeRequest, connection: FakeConnection) -> None:
        await connection.send_json({"error": {"message": "no"}}, 400)

    async with rig(refuses, sends()) as r, r.client() as client:
        await client.request()
        response = await client.response()
        assert (response.status, json.loads(response.body)) == (400, {"error": {"message": "no"}})
        assert (await r.report()).cause is Cause.UPSTREAM_ERROR
        assert r.hooks.retries == []


async def test_a_kept_connection_that_the_worker_has_closed_is_replaced_once() -> None:
    async def closes_on_reuse(request: FakeRequest, connection: FakeConnection) -> None:
        if connection.served == 1:
            connection.drop()
        else:
            await sends()(request, connection)

    async with rig(closes_on_reuse) as r, r.client() as client:
        for number in range(2):
            await client.request()
            assert await body_of(client) == WHOLE
            await r.report(number)
        assert len(r.worker.connections) == 2
        assert r.hooks.retries == []


async def test_a_replacement_that_fails_too_is_the_workers_failure() -> None:
    async def fails_after_the_first(request: FakeRequest, connection: FakeConnection) -> None:
        if connection.number == 0 and connection.served == 0:
            await sends()(request, connection)
        else:
            connection.drop()

    async with rig(fails_after_the_first, sends()) as r, r.client() as client:
        for number in range(2):
            await client.request()
            assert await body_of(client) == WHOLE
            await r.report(number)
        assert len(r.worker.connections) == 2
        assert len(r.hooks.retries) == 1


async def test_a_worker_that_is_not_there_is_replaced() -> None:
    async with rig(sends(), sends()) as r, r.client() as client:
        assert r.worker._server is not None
        r.worker._server.close()
        await client.request()
        assert await body_of(client) == WHOLE
        ((detail, status, _),) = r.hooks.retries
        assert "cannot connect" in detail
        assert status is None


async def test_a_worker_that_never_answers_times_out_and_is_let_go() -> None:
    async with rig(silent, sends(), idle_timeout_s=0.05) as r, r.client() as client:
        await client.request()
        assert await body_of(client) == WHOLE
        ((detail, status, timed_out),) = r.hooks.retries
        assert (status, timed_out) == (None, True)
        assert "silent" in detail
        await until(lambda: r.worker.connections[0].gone.is_set(), "the worker sees it")


async def test_a_worker_that_falls_silent_ends_in_a_typed_error_event() -> None:
    script = stops_after(3, FakeConnection.until_gone)
    async with rig(script, idle_timeout_s=0.05) as r, r.client() as client:
        await client.request()
        body = await body_of(client)
        assert json.loads(body.rpartition(b"data: ")[2])["error"]["code"] == "timed_out"
        assert (await r.report()).cause is Cause.TIMED_OUT
        await until(lambda: r.worker.connections[0].gone.is_set())


async def test_a_worker_that_breaks_the_protocol_is_not_used_again() -> None:
    async def nonsense(request: FakeRequest, connection: FakeConnection) -> None:
        if connection.number == 0:
            await connection.send(b"SMTP ready\r\n\r\n")
            await connection.until_gone()
        else:
            await sends()(request, connection)

    async with rig(nonsense, sends()) as r, r.client() as client:
        await client.request()
        assert await body_of(client) == WHOLE
        assert len(r.hooks.retries) == 1
        await until(lambda: r.worker.connections[0].gone.is_set())


async def test_a_body_that_is_not_whole_closes_the_client_where_nothing_else_can_tell() -> None:
    async def half(_: FakeRequest, connection: FakeConnection) -> None:
        await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
        connection.writer.close()

    async with rig(half) as r, r.client() as client:
        r.changes = {"relay_only": True}
        await client.request()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.response()
        assert (await r.report()).cause is Cause.UPSTREAM_ERROR


async def test_bytes_that_nobody_asked_for_cost_the_connection() -> None:
    async def says_too_much(request: FakeRequest, connection: FakeConnection) -> None:
        await sends()(request, connection)
        if connection.number == 0:
            await asked.wait()
            await connection.send(b"HTTP/1.1 200 OK\r\n\r\n")
            await connection.until_gone()

    asked = asyncio.Event()
    async with rig(says_too_much) as r, r.client() as client:
        await client.request()
        assert await body_of(client) == WHOLE
        await r.report()
        asked.set()
        await until(lambda: r.worker.connections[0].gone.is_set())
        await client.request()
        assert await body_of(client) == WHOLE
        assert len(r.worker.connections) == 2


# -- the client -----------------------------------------------------------------------------------


@pytest.mark.parametrize("script", [silent, stops_after(3, FakeConnection.until_gone)])
async def test_a_client_that_leaves_takes_its_upstream_along(script: Script) -> None:
    async with rig(script, sends()) as r:
        async with r.client() as client:
            await client.request()
            await until(lambda: r.worker.requests)
            if script is not silent:
                await client.head()
        assert (await r.report()).cause is Cause.CLIENT_GONE
        await until(lambda: r.worker.connections[0].gone.is_set(), "the worker sees it")
        assert r.hooks.retries == []


async def test_a_client_that_leaves_during_the_dial_sends_nothing() -> None:
    async with rig(sends()) as r, r.client() as client:
        r.on_open = lambda _: r.hot.exchanges[0].connection_lost()
        await client.request()
        assert (await r.report()).cause is Cause.CLIENT_GONE
        await until(lambda: r.worker.connections)
        r.on_open = None
        async with r.client() as other:
            await other.request()
            assert await body_of(other) == WHOLE
        assert len(r.worker.requests) == 1
        assert len(r.worker.connections) == 1, "the connection is kept for the next request"


async def test_a_slow_client_slows_its_worker_and_memory_stays_bounded() -> None:
    total, piece = 48_000_000, 64_000
    sent = 0

    async def floods(_: FakeRequest, connection: FakeConnection) -> None:
        nonlocal sent
        await connection.start_stream("application/octet-stream")
        while sent < total:
            await connection.chunk(b"x" * piece)
            sent += piece
        await connection.end_stream()

    async with rig(floods) as r, r.client(limit=1024) as client:
        r.changes = {"relay_only": True}
        await client.request()
        exchange = await r.hot.exchange()
        await until(lambda: exchange.paused, "the client's transport is full")
        (connection,) = r.hot.server.server_state.connections
        upstream = r.relays[0]._upstream
        assert upstream is not None
        assert upstream._transport is not None
        assert not upstream._transport.is_reading()
        before = -1
        while before != sent:
            before = sent
            for _ in range(20):
                await asyncio.sleep(0.001)
        assert sent < total, "the worker is held up"
        assert connection.transport.get_write_buffer_size() < 1_000_000
        await client.head()
        received = 0
        while data := await client.chunk():
            received += len(data)
        assert received == total
        assert (await r.report()).cause is Cause.COMPLETED


async def test_a_client_that_was_behind_already_slows_its_next_worker_from_the_start() -> None:
    async with rig(sends()) as r, r.client() as client:
        r.paused = True
        await client.request()
        await until(lambda: r.relays and r.relays[0]._upstream is not None)
        upstream = r.relays[0]._upstream
        assert upstream is not None
        assert upstream._transport is not None
        assert not upstream._transport.is_reading()
        r.hot.exchanges[0].resume()
        assert await body_of(client) == WHOLE


async def test_a_client_that_does_not_read_at_all_is_closed_and_the_worker_not_blamed() -> None:
    async def floods(_: FakeRequest, connection: FakeConnection) -> None:
        await connection.start_stream()
        while not connection.writer.is_closing():
            await connection.chunk(b"x" * 60_000)

    async with rig(floods, sends(), idle_timeout_s=0.2) as r, r.client(limit=1024) as client:
        r.changes = {"relay_only": True}
        await client.request()
        assert (await r.report()).cause is Cause.CLIENT_GONE
        assert r.hooks.retries == []
        await until(lambda: r.worker.connections[0].gone.is_set())
        await until(lambda: not r.hot.server.server_state.connections)
