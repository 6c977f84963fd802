"""Upstream connections: one keep-alive pool per worker, fed straight from `data_received`.

Fail: a worker that cannot be reached or drops a connection is reported to the owner at once; the
pool never retries by itself, except that a kept connection which the worker closed before answering
is replaced once by its owner.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Protocol, cast


class Owner(Protocol):
    """Who reads from a connection while it serves one exchange."""

    def upstream_bytes(self, data: bytes) -> None: ...

    def upstream_closed(self) -> None: ...


class UpstreamConnection(asyncio.Protocol):
    """One HTTP/1.1 connection to a worker. At most one exchange at a time."""

    def __init__(self, pool: "UpstreamPool") -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self.owner: Owner | None = None
        self.alive = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio.Transport, but have its methods.
        self._transport = cast("asyncio.Transport", transport)
        self.alive = True

    def data_received(self, data: bytes) -> None:
        if self.owner is None:
            # Bytes that nobody asked for: the connection's framing can no longer be trusted.
            self.abort()
            return
        self.owner.upstream_bytes(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.alive = False
        owner, self.owner = self.owner, None
        if owner is None:
            self._pool.forget(self)
        else:
            owner.upstream_closed()

    def send(self, data: bytes) -> None:
        """Write a whole request."""
        assert self._transport is not None
        self._transport.write(data)

    def pause(self) -> None:
        """Stop reading: the client is slower than the worker."""
        if self._transport is not None and self.alive and self._transport.is_reading():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self._transport is not None and self.alive and not self._transport.is_reading():
            self._transport.resume_reading()

    def release(self, *, reusable: bool) -> None:
        """Give the connection back after a complete response."""
        self.owner = None
        if reusable and self.alive:
            self.resume()
            self._pool.keep(self)
        else:
            self.abort()

    def abort(self) -> None:
        """Close without waiting; the worker sees that its client went away."""
        self.owner = None
        self.alive = False
        if self._transport is not None:
            self._transport.abort()


class UpstreamPool:
    """Connections to one worker. `max_idle` bounds what is kept open."""

    def __init__(
        self, host: str, port: int, *, tls: ssl.SSLContext | None = None, max_idle: int = 256
    ) -> None:
        self.host = host
        self.port = port
        self._tls = tls
        self._max_idle = max_idle
        self._idle: list[UpstreamConnection] = []
        self._dials: set[asyncio.Task[None]] = set()

    def acquire(
        self,
        ready: Callable[[UpstreamConnection, bool], None],
        failed: Callable[[Exception], None],
        *,
        fresh: bool = False,
        timeout_s: float = 5.0,
    ) -> None:
        """Call `ready(connection, reused)`, at once for a kept connection, else after a dial."""
        while self._idle and not fresh:
            connection = self._idle.pop()
            if connection.alive:
                ready(connection, True)
                return
        task = asyncio.get_running_loop().create_task(self._dial(ready, failed, timeout_s))
        self._dials.add(task)
        task.add_done_callback(self._dials.discard)

    async def _dial(
        self,
        ready: Callable[[UpstreamConnection, bool], None],
        failed: Callable[[Exception], None],
        timeout_s: float,
    ) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await loop.create_connection(
                    lambda: UpstreamConnection(self), self.host, self.port, ssl=self._tls
                )
        except Exception as error:
            # OSError and TimeoutError, and whatever a name or a TLS context can make go wrong.
            failed(error)
            return
        ready(connection, False)

    def keep(self, connection: UpstreamConnection) -> None:
        """Take an idle connection back."""
        if len(self._idle) < self._max_idle:
            self._idle.append(connection)
        else:
            connection.abort()

    def forget(self, connection: UpstreamConnection) -> None:
        """Drop an idle connection that the worker closed."""
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        """Close what is idle and stop dialling."""
        for task in self._dials:
            task.cancel()
        for connection in self._idle[:]:
            connection.abort()
        self._idle.clear()
