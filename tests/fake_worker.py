"""A worker whose answer to each request is a script of the test: any bytes, at any moment."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

DEADLINE_S = 5.0


@dataclass(slots=True)
class FakeRequest:
    """One request as the worker received it; header names are lower-case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(slots=True)
class FakeConnection:
    """The worker's side of one connection. `number` counts connections from 0, `served` the
    requests on this one before the present."""

    number: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    served: int = 0
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def send_json(self, value: Any, status: int = 200) -> None:
        await self.send_body(json.dumps(value).encode(), status, "application/json")

    async def send_body(self, body: bytes, status: int = 200, kind: str = "text/plain") -> None:
        head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
        await self.send(head.encode() + body)

    async def start_stream(self, kind: str = "text/event-stream") -> None:
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n"
        await self.send(head.encode())

    async def chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%s\r\n" % (len(data), data))

    async def end_stream(self) -> None:
        await self.send(b"0\r\n\r\n")

    def drop(self) -> None:
        """Close with a reset, in the middle of whatever was sent."""
        self.writer.transport.abort()

    async def until_gone(self) -> None:
        """Until the other side closes."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65_536):
                pass
        self.gone.set()


Script = Callable[[FakeRequest, FakeConnection], Awaitable[None]]


class FakeWorker:
    """HTTP/1.1 on a free port of loopback. An async context manager."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[FakeRequest] = []
        self.connections: list[FakeConnection] = []
        self.faults: list[BaseException] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def targets(self) -> list[str]:
        return [request.target for request in self.requests]

    async def __aenter__(self) -> "FakeWorker":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in self.connections:
            connection.writer.transport.abort()
        await asyncio.sleep(0)
        assert not self.faults, self.faults

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = FakeConnection(len(self.connections), reader, writer)
        self.connections.append(connection)
        task = asyncio.get_running_loop().create_task(self._serve(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: FakeConnection) -> None:
        try:
            while (request := await _read(connection.reader)) is not None:
                self.requests.append(request)
                await self.script(request, connection)
                connection.served += 1
                if connection.writer.is_closing():
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except Exception as fault:
            self.faults.append(fault)
        finally:
            connection.gone.set()
            connection.writer.close()


async def _read(reader: asyncio.StreamReader) -> FakeRequest | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    method, target, _ = first.split(" ")
    pairs = (line.partition(":") for line in lines)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return FakeRequest(method, target, headers, body)


def routes(answers: dict[str, Any]) -> Script:
    """A script by path: bytes are text, anything else is JSON, a number is a status without body,
    a callable is a script. A path that is not there is 404."""

    async def script(request: FakeRequest, connection: FakeConnection) -> None:
        answer = answers.get(request.target.partition("?")[0], 404)
        if callable(answer):
            await answer(request, connection)
        elif isinstance(answer, bytes):
            await connection.send_body(answer)
        elif isinstance(answer, int):
            await connection.send_body(b"", answer)
        else:
            await connection.send_json(answer)

    return script


async def until(condition: Callable[[], object], what: str = "") -> Any:
    """The condition's value once it is true; the deadline is the failure. Polls the loop."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_S
    while not (found := condition()):
        assert loop.time() < deadline, f"not in {DEADLINE_S} s: {what}"
        await asyncio.sleep(0.001)
    return found


async def within(work: Awaitable[Any], seconds: float = DEADLINE_S) -> Any:
    """The result of `work`, which must come before the deadline."""
    return await asyncio.wait_for(work, seconds)
