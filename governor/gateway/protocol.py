"""The hot route: uvicorn's httptools protocol with all relayed paths taken before ASGI.

The few paths that Governor answers itself go to the ASGI application unchanged.
"""

import asyncio
from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from governor.gateway.app import LOCAL_PATHS
from governor.gateway.exchange import ClientExchange


def is_local(path: str) -> bool:
    """Whether the ASGI application answers a path; every other one is relayed to a worker."""
    return any(path == local or path.startswith(local + "/") for local in LOCAL_PATHS)


class GovernorProtocol(HttpToolsProtocol):
    """One client connection. `serve` and `max_body_bytes` are set by `protocol_class`."""

    serve: Callable[[ClientExchange], None]
    refuse_body: Callable[[ClientExchange], None]
    max_body_bytes = 16 * 1024 * 1024

    _hot = False
    _method = "POST"
    _parts: list[bytes]
    _size = 0
    _exchange: ClientExchange | None = None
    _stash = b""
    _close_after = False

    def on_message_begin(self) -> None:
        if self._exchange is not None:
            # A second request in the same read: RFC 9112 §9.3.2 lets a server close instead.
            self._close_after = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        path = self.url.partition(b"?")[0].decode("latin-1")
        self._method = self.parser.get_method().decode("ascii")
        self._hot = not is_local(path)
        if self._close_after:
            return
        if not self._hot:
            super().on_headers_complete()
            return
        self._parts, self._size = [], 0
        if self.expect_100_continue:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        if self._close_after:
            return
        if not self._hot:
            super().on_body(body)
            return
        self._size += len(body)
        if self._size <= self.max_body_bytes:
            self._parts.append(body)
        else:
            self._parts.clear()
            if self._exchange is None:
                self._begin(b"", keep_alive=False, too_large=True)

    def on_message_complete(self) -> None:
        if self._close_after:
            return
        if not self._hot:
            super().on_message_complete()
            return
        if self._size > self.max_body_bytes:
            return
        version = self.parser.get_http_version()
        keep_alive = version != "1.0" and self.parser.should_keep_alive()
        self._begin(b"".join(self._parts), keep_alive=keep_alive, too_large=False)

    def _begin(self, body: bytes, *, keep_alive: bool, too_large: bool) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self.headers}
        exchange = ClientExchange(
            self.transport,
            self._method,
            self.url.decode("latin-1"),
            headers,
            body,
            keep_alive=keep_alive,
            finished=self._finished,
        )
        self._exchange = exchange
        (self.refuse_body if too_large else self.serve)(exchange)

    def _finished(self) -> None:
        """The exchange's response is complete: next request, keep-alive timer, or close."""
        exchange, self._exchange = self._exchange, None
        self.server_state.total_requests += 1
        assert exchange is not None
        if self._close_after or not exchange.keep_alive:
            self.transport.close()
            return
        if self._stash:
            data, self._stash = self._stash, b""
            self.loop.call_soon(self.data_received, data)
            return
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def data_received(self, data: bytes) -> None:
        if self.parser is None:
            return
        if self._exchange is not None and self._size <= self.max_body_bytes:
            # The client talks before its answer is complete; keep reading so that its going away
            # is noticed, but not without bound.
            self._stash += data
            if len(self._stash) > self.max_body_bytes:
                self.transport.close()
            return
        super().data_received(data)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._exchange is not None and self._exchange.on_pause is not None:
            self._exchange.on_pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._exchange is not None and self._exchange.on_resume is not None:
            self._exchange.on_resume()

    def connection_lost(self, exc: Exception | None) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.connection_lost()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Graceful stop: an open exchange finishes first, then the connection closes."""
        if self._exchange is not None:
            self._close_after = True
            self._exchange.keep_alive = False
        else:
            super().shutdown()


def protocol_class(
    serve: Callable[[ClientExchange], None],
    refuse_body: Callable[[ClientExchange], None],
    max_body_bytes: int,
) -> type[asyncio.Protocol]:
    """The protocol bound to one gateway; uvicorn instantiates it per connection."""

    class BoundProtocol(GovernorProtocol):
        pass

    BoundProtocol.serve = staticmethod(serve)
    BoundProtocol.refuse_body = staticmethod(refuse_body)
    BoundProtocol.max_body_bytes = max_body_bytes
    return BoundProtocol
