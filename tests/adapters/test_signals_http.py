"""SignalSubscriber against a real server: up, lost, taken up again; silence and nonsense."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from governor.adapters.signals_http import SignalSubscriber
from governor.core.signals import SignalRow
from tests.fake_worker import FakeConnection, FakeRequest, FakeWorker, Script, until

FAST = (0.005, 0.02)


def line(seq: int, *rows: Any, **more: Any) -> bytes:
    message = {"schema": "governor.signals/1", "worker_epoch": "e1", "seq": seq, "rows": rows}
    return json.dumps({**message, **more}).encode() + b"\n"


def row(position: int) -> list[Any]:
    return ["r1", 0, position, [position], 0.5, 1.0, None, 0]


class Heard:
    """What a subscriber told."""

    def __init__(self) -> None:
        self.rows: list[SignalRow] = []
        self.states: list[tuple[bool, str]] = []

    @property
    def positions(self) -> list[int]:
        return [row.position for row in self.rows]

    @property
    def ups(self) -> list[str]:
        return [detail for alive, detail in self.states if alive]

    @property
    def losses(self) -> list[str]:
        return [detail for alive, detail in self.states if not alive]


@asynccontextmanager
async def subscribed(
    script: Script, on_rows: Callable[..., None] | None = None, **options: Any
) -> AsyncIterator[tuple[Heard, FakeWorker]]:
    heard = Heard()
    async with FakeWorker(script) as worker:
        subscriber = SignalSubscriber(
            worker.url,
            "key",
            on_rows or heard.rows.extend,
            lambda alive, detail: heard.states.append((alive, detail)),
            **{"silence_s": 2.0, "backoff_s": FAST, **options},
        )
        task = asyncio.create_task(subscriber.run())
        try:
            yield heard, worker
        finally:
            assert not task.done(), "a subscriber goes on until it is cancelled"
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await subscriber.close()


async def test_rows_arrive_and_the_feed_is_told_to_be_up_once() -> None:
    async def script(_: FakeRequest, connection: FakeConnection) -> None:
        await connection.start_stream("application/x-ndjson")
        await connection.chunk(line(0))
        await connection.chunk(line(1, row(1), row(2)) + line(2, row(3)))
        await connection.until_gone()

    async with subscribed(script) as (heard, worker):
        await until(lambda: len(heard.rows) == 3)
        assert heard.positions == [1, 2, 3]
        assert heard.states == [(True, "e1")]
        assert worker.targets == ["/governor/v1/signals"]
        assert worker.requests[0].headers["authorization"] == "Bearer key"


async def test_lines_cut_anywhere_are_put_together() -> None:
    async def script(_: FakeRequest, connection: FakeConnection) -> None:
        await connection.start_stream("application/x-ndjson")
        data = line(0, row(1)) + b"\n" + line(1, row(2), note="\u2028\x85 is no line end")
        for index in range(len(data)):
            await connection.chunk(data[index : index + 1])
        await connection.until_gone()

    async with subscribed(script) as (heard, _):
        await until(lambda: len(heard.rows) == 2)
        assert heard.losses == []


async def test_raw_unicode_line_ends_inside_a_line_do_not_end_it() -> None:
    async def script(_: FakeRequest, connection: FakeConnection) -> None:
        await connection.start_stream("application/x-ndjson")
        message = json.loads(line(0, row(1), note="a\u2028b\u0085c"))
        await connection.chunk(json.dumps(message, ensure_ascii=False).encode() + b"\n")
        await connection.until_gone()

    async with subscribed(script) as (heard, _):
        await until(lambda: heard.rows)
        assert heard.losses == []


async def test_a_feed_that_ends_is_lost_and_then_taken_up_again() -> None:
    async def script(_: FakeRequest, connection: FakeConnection) -> None:
        await connection.start_stream("application/x-ndjson")
        await connection.chunk(line(0, row(connection.number + 1), worker_epoch="e1"))
        if connection.number == 0:
            await connection.end_stream()
            connection.writer.close()
        elif connection.number == 1:
            connection.drop()
        else:
            await connection.until_gone()

    async with subscribed(script) as (heard, _):
        await until(lambda: len(heard.ups) == 3)
        await until(lambda: len(heard.rows) == 3)
        assert [alive for alive, _ in heard.states] == [True, False, True, False, True]
        assert heard.positions == [1, 2, 3]
        assert "ended" in heard.losses[0]


async def test_a_worker_that_is_silent_has_lost_its_feed() -> None:
    async def script(_: FakeRequest, connection: FakeConnection) -> None:
        await connection.start_stream("application/x-ndjson")
        await connection.chunk(line(0))
        await connection.until_gone()

    async with subscribed(script, silence_s=0.03) as (heard, worker):
        await until(lambda: heard.losses)
        assert heard.states[0] == (True, "e1")
        assert "ReadTimeout" in heard.losses[0]
        await until(lambda: worker.connections[0].gone.is_set(), "the silent connection closed")


@pytest.mark.parametrize(
    "nonsense",
    [b"not json\n", b"[1]\n", b'{"schema": "other"}\n', b"[" * 100_000 + b"\n", b"\xff\xfe\n"],
)
async def test_a_line_that_cannot_be_read_ends_the_subscription_and_not_the_subscriber(
    nonsense: bytes,
) -> None:
    async def script(_: FakeRequest, connection: FakeConnection) -> None:
        await connection.start_stream("application/x-ndjson")
        await connection.chunk(line(0, row(connection.number + 1)))
        if connection.number == 0:
            await connection.chunk(nonsense)
        await connection.until_gone()

    async with subscribed(script) as (heard, _):
        await until(lambda: len(heard.ups) == 2)
        await until(lambda: heard.positions == [1, 2])
        assert len(heard.losses) == 1


async def test_a_line_without_an_end_is_not_collected_for_ever() -> None:
    async def script(_: FakeRequest, connection: FakeConnection) -> None:
        await connection.start_stream("application/x-ndjson")
        with suppress(ConnectionError):
            while not connection.gone.is_set():
                await connection.chunk(b"x" * 4096)

    async with subscribed(script, longest_line=100_000) as (heard, _):
        await until(lambda: heard.losses)
        assert "100000 bytes" in heard.losses[0]


async def test_a_row_that_cannot_be_read_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    async def script(_: FakeRequest, connection: FakeConnection) -> None:
        await connection.start_stream("application/x-ndjson")
        await connection.chunk(line(0, ["bad"], row(1)))
        await connection.until_gone()

    async with subscribed(script) as (heard, _):
        await until(lambda: heard.positions == [1])
        assert "1 rows of the feed could not be read" in caplog.text


async def test_a_worker_without_a_feed_is_asked_again_and_again() -> None:
    async def script(_: FakeRequest, connection: FakeConnection) -> None:
        await connection.send_body(b"", 503)

    async with subscribed(script) as (heard, worker):
        await until(lambda: len(heard.losses) >= 3)
        assert heard.ups == []
        assert "503" in heard.losses[0]
        assert len(worker.requests) >= 3


async def test_a_reader_that_fails_does_not_end_the_subscriber() -> None:
    calls: list[int] = []

    def fails_once(rows: tuple[SignalRow, ...]) -> None:
        calls.append(len(rows))
        if len(calls) == 1:
            raise KeyError("a fault of the reader")

    async def script(_: FakeRequest, connection: FakeConnection) -> None:
        await connection.start_stream("application/x-ndjson")
        await connection.chunk(line(0, row(1)))
        await connection.until_gone()

    async with subscribed(script, fails_once) as (heard, _):
        await until(lambda: len(calls) == 2)
        assert [alive for alive, _ in heard.states] == [True, False, True]


async def test_a_worker_that_is_away_is_waited_for() -> None:
    async with FakeWorker(lambda *_: asyncio.sleep(0)) as worker:
        url = worker.url
    heard = Heard()
    subscriber = SignalSubscriber(
        url, None, heard.rows.extend, lambda *told: heard.states.append(told), backoff_s=FAST
    )
    task = asyncio.create_task(subscriber.run())
    await until(lambda: len(heard.losses) >= 2)
    assert all("ConnectError" in detail for detail in heard.losses)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await subscriber.close()
