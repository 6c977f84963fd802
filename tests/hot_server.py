"""The hot route in this process: uvicorn with GovernorProtocol on a free port; a bare client."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from governor.gateway.exchange import ClientExchange
from governor.gateway.protocol import protocol_class
from tests.fake_worker import until, within

JSON = (b"content-type", b"application/json")


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def main_loop(self) -> None:
        """uvicorn looks every 0.1 s whether it should end; tests have no time for that."""
        await self.on_tick(0)
        while not self.should_exit:
            await asyncio.sleep(0.001)


async def local_app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Stands for the ASGI side: says which path it was asked for."""
    await receive()
    body = b"local " + scope["path"].encode()
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@dataclass
class HotServer:
    """A running server. `exchanges` reached `serve`, `refused` reached `refuse_body`."""

    server: uvicorn.Server
    exchanges: list[ClientExchange] = field(default_factory=list)
    refused: list[ClientExchange] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.server.servers[0].sockets[0].getsockname()[1])

    async def exchange(self, number: int = 0) -> ClientExchange:
        await until(lambda: len(self.exchanges) > number, f"request {number} arrives")
        return self.exchanges[number]

    @contextlib.asynccontextmanager
    async def client(self, limit: int = 2**16) -> AsyncIterator["Client"]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=limit)
        try:
            yield Client(reader, writer)
        finally:
            writer.transport.abort()


@contextlib.asynccontextmanager
async def hot_server(
    serve: Callable[[ClientExchange], None] = lambda exchange: None,
    *,
    app: Any = local_app,
    max_body_bytes: int = 1_000_000,
    keep_alive_s: float = 75,
) -> AsyncIterator[HotServer]:
    def taken(exchange: ClientExchange) -> None:
        hot.exchanges.append(exchange)
        serve(exchange)

    def refuse(exchange: ClientExchange) -> None:
        hot.refused.append(exchange)
        exchange.respond(413, (JSON,), b'{"error":{}}')

    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=0,
        http=protocol_class(taken, refuse, max_body_bytes),
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        timeout_keep_alive=keep_alive_s,  # type: ignore[arg-type]
        timeout_graceful_shutdown=5,
    )
    hot = HotServer(_Server(config))
    task = asyncio.create_task(hot.server.serve())
    try:
        await until(lambda: hot.server.started, "the server starts")
        yield hot
    finally:
        for connection in list(hot.server.server_state.connections):
            connection.transport.abort()
        hot.server.should_exit = True
        await within(task)


@dataclass
class Response:
    """One response as the client read it."""

    status: int
    headers: dict[str, str]
    body: bytes = b""


@dataclass
class Client:
    """A bare HTTP/1.1 client: sends what it is told, reads one response after the other."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def request(
        self, body: bytes = b"", path: str = "/v1/x", method: str = "POST", extra: str = ""
    ) -> None:
        await self.send(request_bytes(body, path, method, extra))

    async def head(self) -> Response:
        raw = await within(self.reader.readuntil(b"\r\n\r\n"))
        first, *lines = raw.decode("latin-1").split("\r\n")[:-2]
        pairs = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        return Response(int(first.split(" ")[1]), headers)

    async def chunk(self) -> bytes:
        """One chunk of a chunked body; empty at its end."""
        size = int(await within(self.reader.readline()), 16)
        data = await within(self.reader.readexactly(size))
        assert await within(self.reader.readexactly(2)) == b"\r\n"
        return bytes(data)

    async def response(self, *, bodiless: bool = False) -> Response:
        found = await self.head()
        if bodiless:
            return found
        if found.headers.get("transfer-encoding") == "chunked":
            while data := await self.chunk():
                found.body += data
        elif "content-length" in found.headers:
            length = int(found.headers["content-length"])
            found.body = await within(self.reader.readexactly(length))
        else:
            found.body = await within(self.reader.read())
        return found

    async def at_end(self) -> bool:
        """Whether the server closes without another byte."""
        return await within(self.reader.read(1)) == b""


def request_bytes(
    body: bytes = b"", path: str = "/v1/x", method: str = "POST", extra: str = ""
) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nhost: h\r\ncontent-length: {len(body)}\r\n{extra}\r\n"
    return head.encode("latin-1") + body


def answer(exchange: ClientExchange, body: bytes = b"ok") -> None:
    exchange.respond(200, (JSON,), body)


def echo(exchange: ClientExchange) -> None:
    answer(exchange, exchange.body)
