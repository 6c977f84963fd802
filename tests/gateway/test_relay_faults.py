"""Relay: events beside the two transports, faults of our own, and the pool of connections."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from governor.core.exchange import LandNow
from governor.core.outcomes import Cause, WrapUpReason
from governor.core.session import SessionLimits, State
from governor.gateway.relay import Relay
from governor.gateway.upstream import UpstreamPool
from tests.fake_worker import FakeConnection, FakeRequest, FakeWorker, until
from tests.gateway_streams import EVENTS, WHOLE, drops, sends, silent, stops_after
from tests.relay_rig import body_of, rig

# -- other events ---------------------------------------------------------------------------------


async def test_a_landing_becomes_a_control_message() -> None:
    async with rig(stops_after(3, FakeConnection.until_gone)) as r, r.client() as client:
        await client.request()
        await until(lambda: r.relays and r.relays[0].machine.session.state is State.THINKING)
        r.relays[0].feed(LandNow(WrapUpReason.OPERATOR))
        ((op, arg, fence),) = r.hooks.controls
        assert (op, fence) == ("land", 1)
        assert arg is not None
        assert arg["reason"] == "operator"


async def test_a_deadline_lands_without_a_byte_from_the_worker() -> None:
    async with rig(stops_after(2, FakeConnection.until_gone)) as r, r.client() as client:
        due = time.monotonic_ns() // 1000 + 20_000
        r.changes = {"limits": SessionLimits(None, None, False, True, land_at_us=due)}
        await client.request()
        await until(lambda: r.hooks.controls)
        assert r.hooks.controls[0][1] is not None
        assert r.hooks.controls[0][1]["reason"] == "deadline"


async def test_a_request_that_is_abandoned_ends_in_a_typed_error_once() -> None:
    async with rig(stops_after(3, FakeConnection.until_gone)) as r, r.client() as client:
        await client.request()
        await client.head()
        await client.chunk()
        for _ in range(2):
            r.relays[0].abandon("the lease expired")
        r.relays[0].feed(LandNow(WrapUpReason.LOOP))
        rest = b""
        while data := await client.chunk():
            rest += data
        assert b"the lease expired" in rest
        assert (await r.report()).cause is Cause.UPSTREAM_ERROR
        await until(lambda: r.worker.connections[0].gone.is_set())


# -- faults of ours -------------------------------------------------------------------------------


def breaks_machine(*names: str) -> Callable[[Relay], None]:
    def fails(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("a fault of ours")

    def on_open(relay: Relay) -> None:
        for name in names:
            setattr(relay.machine, name, fails)

    return on_open


async def test_a_fault_in_the_machine_before_the_head_tries_another_worker() -> None:
    async with rig(sends(), sends()) as r, r.client() as client:

        def first_only(relay: Relay) -> None:
            if len(r.relays) == 1:
                breaks_machine("receive")(relay)

        r.on_open = first_only
        await client.request()
        assert await body_of(client) == WHOLE
        assert r.hooks.faults == ["stream"]
        assert (await r.report()).cause is Cause.COMPLETED


async def test_a_fault_in_the_machine_in_mid_stream_ends_in_a_typed_error() -> None:
    step = asyncio.Event()

    async def script(_: FakeRequest, connection: FakeConnection) -> None:
        await connection.start_stream()
        await connection.chunk(EVENTS[0])
        await step.wait()
        await connection.chunk(EVENTS[1])
        await connection.until_gone()

    async with rig(script) as r, r.client() as client:
        await client.request()
        await client.head()
        await client.chunk()
        breaks_machine("receive")(r.relays[0])
        step.set()
        assert b"internal error" in await client.chunk()
        assert await client.chunk() == b""
        assert (await r.report()).cause is Cause.UPSTREAM_ERROR
        assert r.hooks.faults == ["stream"]
        await until(lambda: r.worker.connections[0].gone.is_set())


async def test_a_machine_that_cannot_even_end_is_still_settled_once() -> None:
    async with rig(sends()) as r, r.client() as client:
        r.on_open = breaks_machine("receive", "abandon")
        await client.request()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.response()
        assert (await r.report()).cause is Cause.UPSTREAM_ERROR
        await until(lambda: r.worker.connections[0].gone.is_set())


async def test_a_fault_after_the_account_was_made_does_not_lose_it() -> None:
    async with rig(sends()) as r, r.client() as client:
        r.changes = {"client_streams": False}
        r.on_open = breaks_machine("_send_aggregate")
        await client.request()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.response()
        assert (await r.report()).cause is Cause.COMPLETED
        assert r.hooks.faults == ["stream"]


async def test_a_fault_in_performing_breaks_the_response_off_and_settles_once() -> None:
    async with rig(stops_after(3, FakeConnection.until_gone)) as r, r.client() as client:
        r.hooks.breaks = {"head_headers"}
        await client.request()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.response()
        assert (await r.report()).cause is Cause.UPSTREAM_ERROR
        assert r.hooks.faults == ["relay"]
        await until(lambda: r.worker.connections[0].gone.is_set())


async def test_a_fault_in_settling_does_not_touch_the_finished_response() -> None:
    async with rig(sends()) as r, r.client() as client:
        r.hooks.breaks = {"settled"}
        for number in range(2):
            await client.request()
            assert await body_of(client) == WHOLE
            await r.report(number)
        assert r.hooks.faults == ["relay", "relay"]
        assert len(r.hot.server.server_state.connections) == 1


async def test_a_fault_in_retrying_does_not_leave_the_client_waiting() -> None:
    async with rig(drops) as r, r.client() as client:
        r.hooks.breaks = {"retry"}
        await client.request()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.response()
        assert r.hooks.faults == ["relay"]


# -- the pool -------------------------------------------------------------------------------------


async def test_the_pool_keeps_no_more_than_its_bound() -> None:
    async with FakeWorker(silent) as worker:
        pool = UpstreamPool("127.0.0.1", worker.port, max_idle=2)
        made: list[Any] = []
        for _ in range(4):
            pool.acquire(lambda connection, _: made.append(connection), made.append)
        await until(lambda: len(made) == 4)
        for connection in made:
            connection.release(reusable=True)
        assert len(pool._idle) == 2
        await until(lambda: sum(c.gone.is_set() for c in worker.connections) == 2)
        pool.close()
        assert pool._idle == []
        await until(lambda: all(c.gone.is_set() for c in worker.connections))


async def test_a_connection_that_was_aborted_is_never_given_out() -> None:
    async with FakeWorker(silent) as worker:
        pool = UpstreamPool("127.0.0.1", worker.port)
        made: list[tuple[Any, bool]] = []

        def ready(connection: Any, reused: bool) -> None:
            made.append((connection, reused))

        pool.acquire(ready, pytest.fail)
        await until(lambda: made)
        made[0][0].release(reusable=True)
        made[0][0].abort()
        pool.acquire(ready, pytest.fail)
        await until(lambda: len(made) == 2)
        assert made[1][1] is False
        assert made[1][0] is not made[0][0]
        pool.close()
        made[1][0].abort()


async def test_a_dial_that_takes_too_long_fails() -> None:
    async with FakeWorker(silent) as worker:
        pool = UpstreamPool("127.0.0.1", worker.port)
        faults: list[Exception] = []
        pool.acquire(pytest.fail, faults.append, timeout_s=0)
        await until(lambda: faults)
        assert isinstance(faults[0], TimeoutError)
        pool.close()


async def test_a_name_that_cannot_be_resolved_fails_and_nothing_is_left_running() -> None:
    pool = UpstreamPool("a" * 70 + ".invalid", 1)
    faults: list[Exception] = []
    pool.acquire(pytest.fail, faults.append)
    await until(lambda: faults)
    await until(lambda: not pool._dials)
