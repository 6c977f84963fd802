"""A gateway in this process that relays whatever comes to scripted workers, and notes what it is
told."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from governor.core.exchange import Retry, StreamPlan, StreamReport
from governor.core.outcomes import LandingPath
from governor.core.session import SessionLimits
from governor.core.stream import StreamMachine
from governor.gateway.exchange import ClientExchange
from governor.gateway.relay import Relay
from governor.gateway.upstream import UpstreamPool
from tests.fake_worker import FakeWorker, Script, until
from tests.hot_server import Client, HotServer, hot_server

REQUEST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: w\r\ncontent-length: 2\r\n\r\n{}"


def plan(**changes: Any) -> StreamPlan:
    base: dict[str, Any] = {
        "rid": "r1",
        "attempt": 0,
        "endpoint": "chat",
        "client_streams": True,
        "limits": SessionLimits(None, None, False, True),
        "control_path": LandingPath.CONTROL,
    }
    return StreamPlan(**(base | changes))


class Hooks:
    """What the relay told. With `elsewhere`, one retry opens a relay to that pool."""

    def __init__(self) -> None:
        self.reports: list[StreamReport] = []
        self.retries: list[tuple[str, int | None, bool]] = []
        self.controls: list[tuple[str, dict[str, Any] | None, int]] = []
        self.renewals: list[tuple[int, bool]] = []
        self.faults: list[str] = []
        self.breaks: set[str] = set()
        self.on_retry: Callable[[], None] | None = None

    def _maybe_break(self, name: str) -> None:
        if name in self.breaks:
            raise KeyError(f"a fault in {name}")

    def head_headers(self) -> tuple[tuple[bytes, bytes], ...]:
        self._maybe_break("head_headers")
        return ((b"x-governor-decision", b"r1"),)

    def control(self, op: str, arg: dict[str, Any] | None, fence: int) -> None:
        self.controls.append((op, arg, fence))

    def renew(self, generated_tokens: int, *, thinking_over: bool) -> None:
        self.renewals.append((generated_tokens, thinking_over))

    def retry(self, failed: Retry) -> None:
        self.retries.append((failed.detail, failed.status, failed.timed_out))
        self._maybe_break("retry")
        if self.on_retry is not None:
            self.on_retry()

    def settled(self, report: StreamReport) -> None:
        self.reports.append(report)
        self._maybe_break("settled")

    def fault(self, where: str) -> None:
        self.faults.append(where)


class Rig:
    """A gateway that relays whatever comes to the workers, in turn for each retry."""

    def __init__(self, workers: list[FakeWorker], idle_timeout_s: float) -> None:
        self.workers = workers
        self.pools = [UpstreamPool("127.0.0.1", worker.port) for worker in workers]
        self.idle_timeout_s = idle_timeout_s
        self.hooks = Hooks()
        self.relays: list[Relay] = []
        self.changes: dict[str, Any] = {}
        self.on_open: Callable[[Relay], None] | None = None
        self.paused = False
        self.hot: HotServer

    @property
    def worker(self) -> FakeWorker:
        return self.workers[0]

    def serve(self, exchange: ClientExchange, attempt: int = 0) -> None:
        machine = StreamMachine(plan(attempt=attempt, **self.changes))
        exchange.paused = exchange.paused or self.paused
        relay = Relay(
            exchange,
            self.pools[attempt],
            REQUEST,
            machine,
            lambda: time.monotonic_ns() // 1000,
            self.hooks,
            idle_timeout_s=self.idle_timeout_s,
        )
        self.relays.append(relay)

        def again() -> None:
            if attempt + 1 < len(self.pools):
                self.serve(exchange, attempt + 1)
            else:
                exchange.respond(502, (), b"nobody answered")

        self.hooks.on_retry = again
        relay.open()
        if self.on_open is not None:
            self.on_open(relay)

    async def report(self, number: int = 0) -> StreamReport:
        """The only account of a request."""
        await until(lambda: len(self.hooks.reports) > number, "the account")
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(self.hooks.reports) == number + 1
        return self.hooks.reports[number]

    def client(self, limit: int = 2**16) -> Any:
        return self.hot.client(limit)


@asynccontextmanager
async def rig(*scripts: Script, idle_timeout_s: float = 30.0) -> AsyncIterator[Rig]:
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(FakeWorker(script)) for script in scripts]
        made = Rig(workers, idle_timeout_s)
        made.hot = await stack.enter_async_context(hot_server(made.serve))
        try:
            yield made
        finally:
            for pool in made.pools:
                pool.close()


async def body_of(client: Client) -> bytes:
    return (await client.response()).body
