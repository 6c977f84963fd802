"""GovernorProtocol on real sockets: one request after the other, bounded, never mixed."""

import asyncio
from typing import Any

import pytest

from governor.gateway.exchange import ClientExchange
from governor.gateway.protocol import is_local
from tests.fake_worker import until, within
from tests.hot_server import answer, echo, hot_server, request_bytes


async def test_requests_follow_each_other_on_one_connection() -> None:
    async with hot_server(echo) as hot, hot.client() as client:
        for body in (b"one", b"two", b"three"):
            await client.request(body, "/v1/chat/completions?x=1", extra="X-Own: a\r\n")
            response = await client.response()
            assert (response.status, response.body) == (200, body)
            assert "connection" not in response.headers
        exchange = hot.exchanges[0]
        assert (exchange.method, exchange.path) == ("POST", "/v1/chat/completions")
        assert exchange.target == "/v1/chat/completions?x=1"
        assert exchange.headers["x-own"] == "a"
        assert len(hot.server.server_state.connections) == 1


async def test_a_client_that_asks_to_close_is_closed() -> None:
    async with hot_server(echo) as hot, hot.client() as client:
        await client.request(b"x", extra="connection: close\r\n")
        assert (await client.response()).headers["connection"] == "close"
        assert await client.at_end()


async def test_an_old_client_gets_no_chunks_and_the_end_of_the_connection() -> None:
    def streams(exchange: ClientExchange) -> None:
        exchange.send_head(200, (), None)
        exchange.write(b"some ")
        exchange.write(b"text")
        exchange.end()

    async with hot_server(streams) as hot, hot.client() as client:
        await client.send(b"GET /v1/x HTTP/1.0\r\n\r\n")
        response = await client.response()
        assert "transfer-encoding" not in response.headers
        assert response.body == b"some text"


async def test_an_idle_connection_is_closed_after_its_time() -> None:
    async with hot_server(echo, keep_alive_s=0.02) as hot, hot.client() as client:
        await client.request(b"x")
        await client.response()
        assert await client.at_end()


async def test_streams_are_chunked_and_an_empty_write_does_not_end_them() -> None:
    async with hot_server() as hot, hot.client() as client:
        await client.request()
        exchange = await hot.exchange()
        exchange.send_head(200, ((b"content-type", b"text/event-stream"),), None)
        response = await client.head()
        assert response.headers["transfer-encoding"] == "chunked"
        for data in (b"data: 1\n\n", b"", b"data: 2\n\n"):
            exchange.write(data)
        assert await client.chunk() == b"data: 1\n\n"
        assert await client.chunk() == b"data: 2\n\n"
        exchange.end()
        exchange.end()
        assert await client.chunk() == b""
        await client.request(b"next")
        answer(await hot.exchange(1))
        assert (await client.response()).status == 200


# -- pipelining -----------------------------------------------------------------------------------


async def test_requests_that_are_answered_at_once_may_come_in_one_read() -> None:
    async with hot_server(echo) as hot, hot.client() as client:
        await client.send(request_bytes(b"a") + request_bytes(b"b") + request_bytes(b"c"))
        assert [(await client.response()).body for _ in range(3)] == [b"a", b"b", b"c"]


async def test_a_second_request_in_the_same_read_closes_after_the_first_answer() -> None:
    async with hot_server() as hot, hot.client() as client:
        await client.send(request_bytes(b"a") + request_bytes(b"b"))
        answer(await hot.exchange(), b"first")
        assert (await client.response()).body == b"first"
        assert await client.at_end()
        assert len(hot.exchanges) == 1


@pytest.mark.parametrize("cut", [1, 5, 30, 70])
async def test_what_comes_before_the_answer_waits_in_order(cut: int) -> None:
    async with hot_server() as hot, hot.client() as client:
        await client.request(b"a")
        first = await hot.exchange()
        later = request_bytes(b"b")
        await client.send(later[:cut])
        await _reads(hot)
        answer(first, b"first")
        await client.send(later[cut:])
        answer(await hot.exchange(1), b"second")
        assert (await client.response()).body == b"first"
        assert (await client.response()).body == b"second"
        assert hot.exchanges[1].body == b"b"


async def test_bytes_that_arrive_between_the_end_and_the_parsing_stay_in_order() -> None:
    """The end of an answer and the next bytes may come in one turn of the loop."""
    async with hot_server() as hot, hot.client() as client:
        await client.request(b"a")
        first = await hot.exchange()
        (connection,) = hot.server.server_state.connections
        later = request_bytes(b"the whole body")
        connection.data_received(later[:40])
        answer(first)
        connection.data_received(later[40:])
        assert (await hot.exchange(1)).body == b"the whole body"


async def test_a_client_that_talks_without_end_is_closed() -> None:
    async with hot_server(max_body_bytes=10_000) as hot, hot.client() as client:
        await client.request(b"a")
        exchange = await hot.exchange()
        gone: list[int] = []
        exchange.on_closed = lambda: gone.append(1)
        await client.send(b"x" * 20_000)
        await until(lambda: gone == [1])


async def test_a_hot_request_behind_a_local_one_never_mixes_with_its_answer() -> None:
    async with hot_server(echo) as hot, hot.client() as client:
        await client.send(request_bytes(path="/healthz", method="GET") + request_bytes(b"hot"))
        assert (await client.response()).body == b"local /healthz"
        assert await client.at_end()
        assert hot.exchanges == []


# -- bodies ---------------------------------------------------------------------------------------


async def test_a_chunked_request_body_is_put_together() -> None:
    async with hot_server(echo) as hot, hot.client() as client:
        await client.send(b"POST /v1/x HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n")
        for data in (b"{", b'"a": 1', b"}"):
            await client.send(b"%x\r\n%s\r\n" % (len(data), data))
            await asyncio.sleep(0)
        await client.send(b"0\r\n\r\n")
        assert (await client.response()).body == b'{"a": 1}'


async def test_a_client_that_expects_it_is_told_to_go_on() -> None:
    async with hot_server(echo) as hot, hot.client() as client:
        await client.send(request_bytes(b"12345", extra="expect: 100-continue\r\n")[:-5])
        assert (await client.head()).status == 100
        await client.send(b"12345")
        assert (await client.response()).body == b"12345"


async def test_a_body_that_is_announced_too_large_is_refused_before_it_is_sent() -> None:
    async with hot_server(echo, max_body_bytes=4) as hot, hot.client() as client:
        await client.send(request_bytes(b"12345", extra="expect: 100-continue\r\n")[:-5])
        assert (await client.response()).status == 413
        assert await client.at_end()
        assert (len(hot.refused), hot.exchanges) == (1, [])


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_large_body_is_refused_once_and_the_client_can_read_it(chunked: bool) -> None:
    """The rest is read and dropped: a reset would take the answer away from the client."""
    size = 8_000_000
    async with hot_server(echo, max_body_bytes=1_000) as hot, hot.client() as client:
        if chunked:
            head = b"POST /v1/x HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n"
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (size, b"x" * size)
        else:
            head = b"POST /v1/x HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n" % size
            body = b"x" * size
        await client.send(head)
        await within(client.send(body))
        response = await client.response()
        assert response.status == 413
        assert response.headers["connection"] == "close"
        assert await client.at_end()
        assert (len(hot.refused), hot.exchanges) == (1, [])


async def test_a_body_at_the_limit_is_served() -> None:
    async with hot_server(echo, max_body_bytes=5) as hot, hot.client() as client:
        await client.request(b"12345")
        assert (await client.response()).body == b"12345"


async def test_a_refused_client_that_goes_away_leaves_nothing() -> None:
    async with hot_server(echo, max_body_bytes=4) as hot:
        async with hot.client() as client:
            await client.send(request_bytes(b"1234567890")[:-2])
            assert (await client.response()).status == 413
        await until(lambda: not hot.server.server_state.connections)


# -- the client goes away -------------------------------------------------------------------------


async def test_a_client_that_goes_away_is_told_once() -> None:
    async with hot_server() as hot:
        async with hot.client() as client:
            await client.request()
            exchange = await hot.exchange()
            told: list[int] = []
            exchange.on_closed = lambda: told.append(1)
        await until(lambda: exchange.closed)
        assert told == [1]
        exchange.send_head(200, (), None)
        exchange.write(b"late")
        exchange.end()
        exchange.abort()
        assert told == [1]


async def test_a_client_that_leaves_after_its_answer_is_nobodys_business() -> None:
    async with hot_server() as hot:
        async with hot.client() as client:
            await client.request()
            exchange = await hot.exchange()
            told: list[int] = []
            exchange.on_closed = lambda: told.append(1)
            answer(exchange)
            await client.response()
        await until(lambda: not hot.server.server_state.connections)
        assert told == []


async def test_a_fault_in_leaving_does_not_keep_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails() -> None:
        raise KeyError("a fault of ours")

    loop = asyncio.get_running_loop()
    faults: list[Any] = []
    loop.set_exception_handler(lambda _, context: faults.append(context))
    async with hot_server() as hot:
        async with hot.client() as client:
            await client.request()
            (await hot.exchange()).on_closed = fails
        await until(lambda: faults)
        assert not hot.server.server_state.connections


async def test_an_exchange_that_is_broken_off_closes_the_connection() -> None:
    async with hot_server() as hot, hot.client() as client:
        await client.request()
        exchange = await hot.exchange()
        exchange.send_head(200, (), 100)
        exchange.write(b"half")
        await client.head()
        exchange.abort()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await within(client.reader.readexactly(100))


async def test_breaking_off_a_finished_exchange_leaves_the_next_one_alone() -> None:
    async with hot_server() as hot, hot.client() as client:
        await client.request()
        first = await hot.exchange()
        answer(first)
        await client.response()
        await client.request()
        second = await hot.exchange(1)
        first.abort()
        answer(second, b"still here")
        assert (await client.response()).body == b"still here"


# -- slow clients ---------------------------------------------------------------------------------


async def test_a_slow_client_pauses_its_exchange_and_memory_stays_bounded() -> None:
    async with hot_server() as hot, hot.client(limit=1024) as client:
        await client.request()
        exchange = await hot.exchange()
        told: list[str] = []
        exchange.on_pause = lambda: told.append("pause")
        exchange.on_resume = lambda: told.append("resume")
        exchange.send_head(200, (), None)
        written = 0
        while not told:
            exchange.write(b"x" * 65_536)
            written += 65_536
            assert written < 64_000_000, "nobody is ever told"
            await asyncio.sleep(0)
        (connection,) = hot.server.server_state.connections
        assert exchange.paused
        assert connection.transport.get_write_buffer_size() < 1_000_000
        await client.head()
        received = 0
        while received < written:
            received += len(await client.chunk())
        await until(lambda: told == ["pause", "resume"])
        assert not exchange.paused
        exchange.end()
        assert await client.chunk() == b""


async def test_the_next_exchange_knows_that_the_client_has_not_caught_up() -> None:
    async with hot_server() as hot, hot.client(limit=1024) as client:
        await client.request()
        first = await hot.exchange()
        first.send_head(200, (), None)
        while not first.paused:
            first.write(b"x" * 65_536)
            await asyncio.sleep(0)
        first.end()
        await client.request(b"again")
        second = await hot.exchange(1)
        assert second.paused
        resumed: list[int] = []
        second.on_resume = lambda: resumed.append(1)
        await client.head()
        while await client.chunk():
            pass
        await until(lambda: resumed == [1])
        assert not second.paused


# -- the end of the server ------------------------------------------------------------------------


async def test_an_open_exchange_finishes_before_the_server_ends() -> None:
    async with hot_server() as hot, hot.client() as client, hot.client() as idle:
        await idle.request()
        answer(await hot.exchange())
        await idle.response()
        await client.request()
        exchange = await hot.exchange(1)
        exchange.send_head(200, (), None)
        exchange.write(b"begun ")
        hot.server.should_exit = True
        assert await idle.at_end(), "an idle connection is closed at once"
        exchange.write(b"and done")
        exchange.end()
        assert (await client.response()).body == b"begun and done"
        assert await client.at_end()


async def test_a_draining_server_says_close_where_the_head_is_not_sent_yet() -> None:
    async with hot_server() as hot, hot.client() as client:
        await client.request()
        exchange = await hot.exchange()
        (connection,) = hot.server.server_state.connections
        connection.shutdown()
        answer(exchange)
        assert (await client.response()).headers["connection"] == "close"
        assert await client.at_end()


# -- methods, targets, nonsense -------------------------------------------------------------------


async def test_the_answer_to_head_has_no_body_and_the_connection_goes_on() -> None:
    async with hot_server(lambda exchange: answer(exchange, b"12345")) as hot, hot.client() as c:
        await c.request(method="HEAD")
        assert (await c.response(bodiless=True)).headers["content-length"] == "5"
        await c.request(method="GET")
        assert (await c.response()).body == b"12345"


async def test_a_stream_in_answer_to_head_has_no_body_either() -> None:
    def streams(exchange: ClientExchange) -> None:
        exchange.send_head(200, (), None)
        exchange.write(b"data")
        exchange.end()

    async with hot_server(streams) as hot, hot.client() as client:
        await client.request(method="HEAD")
        head = await client.response(bodiless=True)
        assert "transfer-encoding" not in head.headers
        await client.request(method="GET")
        assert (await client.response()).body == b"data"


async def test_no_content_has_no_length() -> None:
    async with hot_server(lambda e: e.respond(204, (), b"")) as hot, hot.client() as client:
        await client.request()
        response = await client.response(bodiless=True)
        assert (response.status, "content-length" in response.headers) == (204, False)
        await client.request()
        assert (await client.response(bodiless=True)).status == 204


async def test_the_target_may_name_the_host() -> None:
    async with hot_server(echo) as hot, hot.client() as client:
        await client.request(b"x", "http://h:80/v1/chat/completions?q=1")
        await client.response()
        assert hot.exchanges[0].path == "/v1/chat/completions"
        assert hot.exchanges[0].target == "/v1/chat/completions?q=1"
        await client.request(b"", "http://h/healthz", "GET")
        assert (await client.response()).body == b"local /healthz"


async def test_a_repeated_header_becomes_one_list() -> None:
    async with hot_server(echo) as hot, hot.client() as client:
        await client.request(b"", extra="X-A: 1\r\nx-a: 2\r\nauthorization: Bearer a\r\n")
        await client.response()
        assert hot.exchanges[0].headers["x-a"] == "1, 2"


async def test_what_is_no_request_is_answered_with_400_and_closed() -> None:
    async with hot_server(echo) as hot, hot.client() as client:
        await client.send(b"nonsense\r\n\r\n")
        assert (await client.response()).status == 400
        assert await client.at_end()


async def test_nonsense_behind_an_open_request_does_not_answer_it() -> None:
    async with hot_server() as hot, hot.client() as client:
        await client.send(request_bytes(b"a") + b"\x00\x01 nonsense\r\n\r\n")
        exchange = await hot.exchange()
        answer(exchange, b"the answer")
        response = await client.response()
        assert (response.status, response.body) == (200, b"the answer")
        assert await client.at_end()


async def test_a_fault_in_serving_closes_and_is_no_400(caplog: pytest.LogCaptureFixture) -> None:
    def fails(_: ClientExchange) -> None:
        raise KeyError("a fault of ours")

    async with hot_server(fails) as hot, hot.client() as client:
        await client.request()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.head()
        assert "could not be served" in caplog.text


async def test_local_paths_go_to_the_application_and_all_others_do_not() -> None:
    async with hot_server(echo) as hot, hot.client() as client:
        for path in ("/healthz", "/metrics", "/v1/models", "/v1/models/org/name"):
            await client.request(path=path, method="GET")
            assert (await client.response()).body == b"local " + path.encode()
        await client.request(b"hot", "/v1/embeddings")
        assert (await client.response()).body == b"hot"
        await client.request(path="/readyz?verbose=1", method="GET")
        assert (await client.response()).body == b"local /readyz"


@pytest.mark.parametrize(
    ("path", "local"),
    [
        ("/v1/governor/decisions/x", True),
        ("/v1/models", True),
        ("/v1/modelsx", False),
        ("/metricsx", False),
        ("/", False),
        ("/v1/chat/completions", False),
    ],
)
def test_which_paths_are_local(path: str, local: bool) -> None:
    assert is_local(path) is local


async def _reads(hot: Any) -> None:
    """Until the server has taken what the client sent."""
    (connection,) = hot.server.server_state.connections
    await until(lambda: connection._stash)
