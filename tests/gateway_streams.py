"""Streams and scripts of a worker that tests of the gateway share."""

import json
from collections.abc import Callable
from typing import Any

from tests.fake_worker import FakeConnection, FakeRequest, Script


def sse(delta: dict[str, Any] | None, **more: Any) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": None}]
    return b"data: " + json.dumps({"id": "c", "choices": choices, **more}).encode() + b"\n\n"


EVENTS = [
    sse({"role": "assistant", "content": ""}),
    *(sse({"reasoning": f"step {n} é\n"}) for n in range(5)),
    sse({"content": "42"}),
    b"data: [DONE]\n\n",
]
WHOLE = b"".join(EVENTS)


def sends(body: bytes = WHOLE, size: int = 10**9, kind: str = "text/event-stream") -> Script:
    """Sends a whole stream in chunks of a size."""

    async def script(_: FakeRequest, connection: FakeConnection) -> None:
        await connection.start_stream(kind)
        for start in range(0, len(body), size):
            await connection.chunk(body[start : start + size])
        await connection.end_stream()

    return script


def stops_after(events: int, then: Callable[[FakeConnection], Any]) -> Script:
    async def script(_: FakeRequest, connection: FakeConnection) -> None:
        await connection.start_stream()
        for event in EVENTS[:events]:
            await connection.chunk(event)
        result = then(connection)
        if result is not None:
            await result

    return script


async def silent(_: FakeRequest, connection: FakeConnection) -> None:
    await connection.until_gone()


async def drops(_: FakeRequest, connection: FakeConnection) -> None:
    connection.drop()
