"""Serving: uvicorn around hot protocol and local routes; drain and reload by signal."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Generator

import uvicorn

from governor.gateway.app import build_app
from governor.gateway.protocol import protocol_class
from governor.gateway.views import RuntimeView
from governor.gateway.wiring import Runtime

log = logging.getLogger("governor.server")


class GovernorServer(uvicorn.Server):
    """uvicorn's server that ends with exit code 0 after a drain that a signal asked for."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """SIGTERM and SIGINT drain; uvicorn would raise the signal again at the end."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)


def make_server(runtime: Runtime) -> GovernorServer:
    """The server of one runtime; it is not started."""
    settings, gateway = runtime.settings, runtime.gateway
    config = uvicorn.Config(
        build_app(RuntimeView(runtime)),
        host=settings.host,
        port=settings.port,
        http=protocol_class(gateway.serve, gateway.refuse_body, settings.max_body_bytes),
        ws="none",
        lifespan="off",
        access_log=False,
        log_level=settings.log_level,
        timeout_graceful_shutdown=int(settings.drain_timeout_s),
        timeout_keep_alive=75,
        backlog=4096,
    )
    return GovernorServer(config)


async def serve(
    runtime: Runtime, on_started: Callable[[GovernorServer], None] | None = None
) -> None:
    """Serve until a signal; then finish the open streams, settle, and return."""
    server = make_server(runtime)
    loop = asyncio.get_running_loop()
    reloads: set[asyncio.Task[object]] = set()

    def reload() -> None:
        task: asyncio.Task[object] = loop.create_task(runtime.reload_policy())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    loop.add_signal_handler(signal.SIGHUP, reload)
    runtime.start()
    started: asyncio.Task[None] | None = None
    if on_started is not None:
        started = loop.create_task(_when_started(server, on_started))
    try:
        await server.serve()
    finally:
        if started is not None:
            started.cancel()
        loop.remove_signal_handler(signal.SIGHUP)
        await runtime.stop()


async def _when_started(
    server: GovernorServer, on_started: Callable[[GovernorServer], None]
) -> None:
    while not server.started:
        await asyncio.sleep(0.02)
    on_started(server)
