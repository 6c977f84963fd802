"""Relay: performs a StreamMachine's actions on the client's and the worker's transports.

No task, future or queue per chunk: the worker's `data_received` runs the machine and writes to the
client's transport. A fault of ours never breaks a stream: see `_guarded`.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

from governor.core.exchange import (
    AbortClient,
    AbortUpstream,
    ClientClosed,
    EndResponse,
    ReleaseUpstream,
    RenewLease,
    Retry,
    Send,
    SendControl,
    SendHead,
    Settle,
    StreamAction,
    StreamEvent,
    StreamReport,
    Tick,
    UpstreamClosed,
    UpstreamFault,
    WakeAt,
)
from governor.core.stream import StreamMachine
from governor.gateway.exchange import ClientExchange
from governor.gateway.upstream import UpstreamConnection, UpstreamPool

log = logging.getLogger("governor.relay")


class RelayHooks(Protocol):
    """What the relay tells to the request that it serves. Called synchronously."""

    def head_headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """Governor's own headers for the client's response."""

    def control(self, op: str, arg: dict[str, Any] | None, fence: int) -> None:
        """Send a control message to the worker."""

    def renew(self, generated_tokens: int, *, thinking_over: bool) -> None:
        """Renew the lease."""

    def retry(self, failed: Retry) -> None:
        """The attempt failed before a byte reached the client: try another worker or refuse."""

    def settled(self, report: StreamReport) -> None:
        """The request is over."""

    def fault(self, where: str) -> None:
        """An exception in Governor itself was caught."""


class Relay:
    """One upstream attempt between one client exchange and one worker."""

    def __init__(
        self,
        client: ClientExchange,
        pool: UpstreamPool,
        request: bytes,
        machine: StreamMachine,
        now_us: Callable[[], int],
        hooks: RelayHooks,
        *,
        idle_timeout_s: float,
    ) -> None:
        self._client = client
        self._pool = pool
        self._request = request
        self.machine = machine
        self._now_us = now_us
        self._hooks = hooks
        self._idle_timeout_s = idle_timeout_s
        self._upstream: UpstreamConnection | None = None
        self._reused = False
        self._saw_bytes = False
        self._last_bytes_us = 0
        self._paused = False
        self._loop = asyncio.get_running_loop()
        self._timers: set[asyncio.TimerHandle] = set()
        self._over = False

    def open(self) -> None:
        """Send the request to the worker; the rest happens in callbacks."""
        self._client.on_closed = self._client_closed
        self._client.on_pause = self._client_paused
        self._client.on_resume = self._client_resumed
        self._paused = self._client.paused
        self._last_bytes_us = self._now_us()
        self._wake_in(self._idle_timeout_s, self._check_idle)
        self._perform(self.machine.start(self._last_bytes_us))
        self._pool.acquire(self._connected, self._connect_failed)

    def feed(self, event: StreamEvent) -> None:
        """An event from outside the two transports: a signal, an ack, an operator."""
        if not self._over:
            self._guarded(event)

    def abandon(self, detail: str) -> None:
        """End the exchange with a typed error, whatever the worker does."""
        if not self._over:
            self._perform(self._abandoned(detail))

    # -- upstream ---------------------------------------------------------------------------------

    def _connected(self, connection: UpstreamConnection, reused: bool) -> None:
        if self._over:
            connection.release(reusable=True)
            return
        self._upstream = connection
        self._reused = reused
        connection.owner = self
        connection.send(self._request)
        if self._paused:
            connection.pause()

    def _connect_failed(self, error: Exception) -> None:
        if not self._over:
            detail = f"cannot connect to the worker: {error or type(error).__name__}"
            self._guarded(UpstreamFault(detail, timed_out=isinstance(error, TimeoutError)))

    def upstream_bytes(self, data: bytes) -> None:
        """Called by the connection for each read."""
        self._saw_bytes = True
        self._last_bytes_us = self._now_us()
        self._guarded(data)

    def upstream_closed(self) -> None:
        """Called by the connection when the worker closed it."""
        self._upstream = None
        if self._over:
            return
        if self._reused and not self._saw_bytes:
            # The worker closed an idle connection just as it was taken: not its failure.
            self._pool.acquire(self._connected, self._connect_failed, fresh=True)
            return
        self._guarded(UpstreamClosed())

    def _check_idle(self) -> None:
        silent_s = (self._now_us() - self._last_bytes_us) / 1e6
        if silent_s < self._idle_timeout_s:
            self._wake_in(self._idle_timeout_s - silent_s, self._check_idle)
        elif self._paused:
            # Nothing is read because the client does not read: it is the client that stalls.
            log.warning("the client has not read for %.0f s; closing", silent_s)
            self._client.abort()
            self._guarded(ClientClosed())
        else:
            detail = f"the worker was silent for {silent_s:.0f} s"
            self._guarded(UpstreamFault(detail, timed_out=True))

    # -- client -----------------------------------------------------------------------------------

    def _client_closed(self) -> None:
        if not self._over:
            self._guarded(ClientClosed())

    def _client_paused(self) -> None:
        self._paused = True
        if self._upstream is not None:
            self._upstream.pause()

    def _client_resumed(self) -> None:
        self._paused = False
        if self._upstream is not None:
            self._last_bytes_us = self._now_us()
            self._upstream.resume()

    # -- actions ----------------------------------------------------------------------------------

    def _guarded(self, event: bytes | StreamEvent) -> None:
        try:
            actions = self.machine.receive(event, self._now_us())
        except Exception:
            log.exception("stream machine failed; the request is ended with a typed error")
            self._hooks.fault("stream")
            actions = self._abandoned("internal error in the gateway")
        self._perform(actions)

    def _abandoned(self, detail: str) -> tuple[StreamAction, ...]:
        """The actions of an early end; only the account where the machine cannot even do that."""
        try:
            actions = self.machine.abandon(detail, self._now_us())
        except Exception:
            log.exception("stream machine cannot end the request")
            actions = ()
        if any(isinstance(action, Settle | Retry) for action in actions):
            return actions
        return (*actions, AbortUpstream(), AbortClient(), Settle(self._last_account(detail)))

    def _last_account(self, detail: str) -> StreamReport:
        machine = self.machine
        return machine.report or machine.observer.unfinished(self._now_us(), detail)

    def _perform(self, actions: tuple[StreamAction, ...]) -> None:
        for action in actions:
            try:
                self._perform_one(action)
            except Exception:
                log.exception("%s could not be performed", type(action).__name__)
                self._hooks.fault("relay")
                self._break_off(action)
                return

    def _break_off(self, failed: StreamAction) -> None:
        """An action failed: the client must not wait for what will not come. Settles, unless it
        was settling that failed."""
        settling = isinstance(failed, Settle | Retry)
        if not self._client.done:
            self._client.abort()
        if not settling and not self._over:
            self._close()
            self._hooks.settled(self._last_account("internal error in the gateway"))

    def _perform_one(self, action: StreamAction) -> None:
        match action:
            case Send(data):
                self._client.write(data)
            case SendHead(status, headers, length):
                self._client.send_head(status, (*headers, *self._hooks.head_headers()), length)
            case EndResponse():
                self._client.end()
            case ReleaseUpstream(reusable):
                self._release(reusable=reusable)
            case AbortUpstream():
                self._abort()
            case AbortClient():
                self._client.abort()
            case SendControl(op, arg, fence):
                self._hooks.control(op, arg, fence)
            case RenewLease(generated, over):
                self._hooks.renew(generated, thinking_over=over)
            case WakeAt(at_us):
                self._wake_in(max(0.0, (at_us - self._now_us()) / 1e6), self._tick)
            case Retry():
                self._close()
                self._hooks.retry(action)
            case Settle(report):
                self._close()
                self._hooks.settled(report)

    def _tick(self) -> None:
        self.feed(Tick())

    def _release(self, *, reusable: bool) -> None:
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.release(reusable=reusable)

    def _abort(self) -> None:
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.abort()

    def _wake_in(self, seconds: float, call: Callable[[], None]) -> None:
        def fire() -> None:
            self._timers.discard(handle)
            if not self._over:
                call()

        handle = self._loop.call_later(seconds, fire)
        self._timers.add(handle)

    def _close(self) -> None:
        self._over = True
        self._abort()
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
