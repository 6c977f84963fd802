"""LiveRequest between a dispatcher and workers: each attempt settled once, each request ended once,
the client always answered."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from governor.core.dispatch import Arrived
from governor.core.estimator import Observation
from governor.core.exchange import StreamReport
from governor.core.lease import Settlement
from governor.core.outcomes import Cause, Mode, Reason
from governor.core.policy import QueuePolicy, TenantPolicy
from governor.core.signals import Control
from governor.gateway.exchange import ClientExchange
from governor.gateway.plan import Attempt, WorkerFacts
from governor.gateway.request import LiveRequest
from governor.gateway.upstream import UpstreamPool
from governor.gateway.wire import parse
from governor.services.ticket import Admitted
from tests.admission_builders import arrived, forecast
from tests.fake_worker import FakeConnection, FakeWorker, Script, until
from tests.gateway_streams import WHOLE, drops, sends, silent, stops_after
from tests.hot_server import HotServer, hot_server

BODY = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "?"}]})


class Shell:
    """A gateway that admits to one worker after the other, or not at all."""

    def __init__(self, workers: list[FakeWorker], idle_timeout_s: float) -> None:
        self.pools = {f"w{n}": UpstreamPool("127.0.0.1", w.port) for n, w in enumerate(workers)}
        self.idle_timeout_s = idle_timeout_s
        self.policy = TenantPolicy()
        self.admits = True
        self.breaks = False
        self.arrivals: list[Arrived] = []
        self.settlements: list[Settlement] = []
        self.reports: list[StreamReport] = []
        self.failed_workers: list[str] = []
        self.told: list[str] = []
        self.requests: list[LiveRequest] = []

    def serve(self, exchange: ClientExchange) -> None:
        parsed = parse(
            "/v1/chat/completions",
            exchange.body,
            exchange.headers,
            decision_id="r1",
            policy=self.policy,
            now_us=self.now_us(),
            prompt_tokens_estimate=lambda _, size: size,
            thinks=lambda _: False,
        )
        request = LiveRequest(
            self, exchange, parsed, self.policy, Mode.OBSERVE, forecast(), None, arrived("r1")
        )
        self.requests.append(request)
        request.begin()

    def now_us(self) -> int:
        return time.monotonic_ns() // 1000

    def pool(self, worker_id: str) -> UpstreamPool:
        return self.pools[worker_id]

    def facts(self, worker_id: str) -> WorkerFacts:
        return WorkerFacts(worker_id, frozenset(), (), 0, 1_000, False)

    def upstream_request(self, attempt: Attempt, exchange: ClientExchange) -> bytes:
        head = f"POST / HTTP/1.1\r\nhost: w\r\nx-governor-attempt: {attempt.number}\r\n"
        return head.encode() + b"content-length: 0\r\n\r\n"

    def arrive(self, request: LiveRequest, arrived: Arrived) -> None:
        self.arrivals.append(arrived)
        if self.admits:
            self.admit(request)

    def admit(self, request: LiveRequest) -> None:
        number = len(self.arrivals) - 1
        request.admitted(Admitted(f"w{number}", Reason.FITS, None, None, 0))

    def gone(self, request: LiveRequest) -> None:
        self.told.append("gone")

    def withdraw(self, request: LiveRequest) -> None:
        self.told.append("withdraw")

    def settle(self, request: LiveRequest, settlement: Settlement) -> None:
        self.settlements.append(settlement)

    def renew(self, request: LiveRequest, generated_tokens: int, thinking_over: bool) -> None: ...

    def control(self, request: LiveRequest, control: Control) -> None: ...

    def worker_failed(self, worker_id: str, detail: str) -> None:
        self.failed_workers.append(worker_id)

    def opened(self, request: LiveRequest) -> None:
        self.told.append("opened")

    def refused(
        self, request: LiveRequest, reason: Reason, retry_after_us: int, queued_us: int
    ) -> None:
        self.told.append(f"refused {reason.value}")
        request.exchange.respond(503, (), b"refused")

    def upstream_failed(
        self, request: LiveRequest, detail: str, status: int | None, timed_out: bool
    ) -> None:
        self.told.append("upstream_failed")
        request.exchange.respond(504 if timed_out else 502, (), detail.encode())

    def failed(self, request: LiveRequest) -> None:
        self.told.append("failed")
        request.exchange.respond(500, (), b"failed")

    def ended(
        self, request: LiveRequest, report: StreamReport, observation: Observation | None
    ) -> None:
        self.reports.append(report)

    def fault(self, where: str) -> None:
        self.told.append(f"fault {where}")


@asynccontextmanager
async def serving(
    *scripts: Script, idle_timeout_s: float = 30.0, **policy: Any
) -> AsyncIterator[tuple[Shell, HotServer, list[FakeWorker]]]:
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(FakeWorker(script)) for script in scripts]
        shell = Shell(workers, idle_timeout_s)
        shell.policy = replace(shell.policy, **policy)
        hot = await stack.enter_async_context(hot_server(shell.serve))
        try:
            yield shell, hot, workers
        finally:
            for pool in shell.pools.values():
                pool.close()


async def test_a_request_is_settled_and_ended_once() -> None:
    async with serving(sends()) as (shell, hot, _), hot.client() as client:
        await client.request(BODY.encode())
        response = await client.response()
        assert response.body == WHOLE
        assert response.headers["x-governor-worker"] == "w0"
        await until(lambda: shell.reports)
        assert [s.cause for s in shell.settlements] == [Cause.COMPLETED]
        assert len(shell.reports) == 1


async def test_a_retry_elsewhere_has_its_own_attempt_and_settlement() -> None:
    async with serving(drops, sends()) as (shell, hot, workers), hot.client() as client:
        await client.request(BODY.encode())
        assert (await client.response()).body == WHOLE
        await until(lambda: shell.reports)
        first, second = shell.arrivals
        assert first.request_id == second.request_id == "r1"
        assert (first.attempt, second.attempt) == (0, 1)
        assert second.excluded == {"w0"}
        assert [s.cause for s in shell.settlements] == [Cause.UPSTREAM_ERROR, Cause.COMPLETED]
        assert [r.cause for r in shell.reports] == [Cause.COMPLETED]
        assert shell.failed_workers == ["w0"]
        sent = [w.requests[0].headers["x-governor-attempt"] for w in workers]
        assert sent == ["0", "1"]


async def test_the_second_failure_is_the_last() -> None:
    async with serving(drops, drops, sends()) as (shell, hot, workers), hot.client() as client:
        await client.request(BODY.encode())
        assert (await client.response()).status == 502
        assert [s.cause for s in shell.settlements] == [Cause.UPSTREAM_ERROR] * 2
        assert [r.cause for r in shell.reports] == [Cause.UPSTREAM_ERROR]
        assert workers[2].requests == []


async def test_a_busy_worker_is_not_taken_for_a_broken_one() -> None:
    async def busy(_: Any, connection: FakeConnection) -> None:
        await connection.send_json({}, 503)

    async with serving(busy, sends()) as (shell, hot, _), hot.client() as client:
        await client.request(BODY.encode())
        assert (await client.response()).body == WHOLE
        assert shell.failed_workers == []


async def test_a_silent_worker_is_told_as_a_timeout() -> None:
    async with (
        serving(silent, silent, idle_timeout_s=0.03) as (shell, hot, _),
        hot.client() as client,
    ):
        await client.request(BODY.encode())
        assert (await client.response()).status == 504
        assert [r.cause for r in shell.reports] == [Cause.TIMED_OUT]
        assert [s.cause for s in shell.settlements] == [Cause.TIMED_OUT] * 2


async def test_a_client_that_leaves_a_running_request_is_settled_and_not_retried() -> None:
    async with serving(silent, sends()) as (shell, hot, workers):
        async with hot.client() as client:
            await client.request(BODY.encode())
            await until(lambda: workers[0].requests)
        await until(lambda: shell.reports)
        assert [s.cause for s in shell.settlements] == [Cause.CLIENT_GONE]
        assert len(shell.arrivals) == 1
        assert "gone" not in shell.told


async def test_a_client_that_leaves_the_queue_is_withdrawn_and_holds_nothing() -> None:
    async with serving(sends()) as (shell, hot, _):
        shell.admits = False
        async with hot.client() as client:
            await client.request(BODY.encode())
            await until(lambda: shell.arrivals)
        await until(lambda: shell.told == ["gone"])
        assert (shell.settlements, shell.reports) == ([], [])


async def test_a_long_wait_is_told_with_comments_and_then_the_stream() -> None:
    policy = QueuePolicy(commit_after_s=0.01)
    async with serving(sends(), queue=policy) as (shell, hot, _), hot.client() as client:
        shell.admits = False
        await client.request(BODY.encode())
        await until(lambda: shell.requests)
        shell.requests[0].queued(3, Reason.NO_HEADROOM)
        head = await client.head()
        assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
        assert (await client.chunk()).startswith(b": queued, position 3")
        shell.admit(shell.requests[0])
        body = b""
        while data := await client.chunk():
            body += data
        assert body == WHOLE


async def test_a_refusal_before_anything_was_sent_is_a_real_status() -> None:
    async with serving(sends()) as (shell, hot, _), hot.client() as client:
        shell.admits = False
        await client.request(BODY.encode())
        await until(lambda: shell.requests)
        shell.requests[0].queued(1, Reason.NO_HEADROOM)
        shell.requests[0].shed(Reason.QUEUE_TTL, 1_000_000, 5)
        assert (await client.response()).status == 503
        assert shell.requests[0]._waiting is None


async def test_a_refusal_after_the_first_comment_is_an_error_event() -> None:
    policy = QueuePolicy(commit_after_s=0.01)
    async with serving(sends(), queue=policy) as (shell, hot, _), hot.client() as client:
        shell.admits = False
        await client.request(BODY.encode())
        await until(lambda: shell.requests)
        shell.requests[0].queued(1, Reason.NO_HEADROOM)
        await client.head()
        await client.chunk()
        shell.requests[0].shed(Reason.QUEUE_TTL, 1_000_000, 5)
        assert await client.chunk() == b"data: refused\n\n"
        assert await client.chunk() == b""


async def test_what_cannot_be_opened_is_answered() -> None:
    async with serving(sends()) as (shell, hot, _), hot.client() as client:
        shell.admits = False
        await client.request(BODY.encode())
        await until(lambda: shell.requests)
        shell.requests[0].failed()
        assert (await client.response()).status == 500


@pytest.mark.parametrize("started", [False, True])
async def test_a_gateway_that_stops_ends_an_open_request_without_another_attempt(
    started: bool,
) -> None:
    script = stops_after(3, FakeConnection.until_gone) if started else silent
    async with serving(script, sends()) as (shell, hot, workers), hot.client() as client:
        await client.request(BODY.encode())
        await until(lambda: workers[0].requests)
        if started:
            await client.head()
        shell.requests[0].stop("the gateway is shutting down")
        if started:
            rest = b""
            while data := await client.chunk():
                rest += data
            assert b"shutting down" in rest
        else:
            assert (await client.response()).status == 502
        assert len(shell.settlements) == len(shell.reports) == 1
        assert workers[1].requests == []


async def test_a_gateway_that_stops_refuses_who_waits() -> None:
    async with serving(sends()) as (shell, hot, _), hot.client() as client:
        shell.admits = False
        await client.request(BODY.encode())
        await until(lambda: shell.requests)
        shell.requests[0].stop("the gateway is shutting down")
        shell.requests[0].stop("the gateway is shutting down")
        assert (await client.response()).status == 503
        assert shell.told == ["withdraw", "refused draining"]


async def test_a_lost_lease_cuts_the_stream_and_is_settled_once() -> None:
    script = stops_after(3, FakeConnection.until_gone)
    async with serving(script) as (shell, hot, workers), hot.client() as client:
        await client.request(BODY.encode())
        await client.head()
        await client.chunk()
        shell.requests[0].lease_lost()
        shell.requests[0].lease_lost()
        await until(lambda: workers[0].connections[0].gone.is_set())
        assert len(shell.settlements) == len(shell.reports) == 1
        await asyncio.sleep(0)
