"""The hot route: uvicorn's httptools protocol with all relayed paths taken before ASGI.

The few paths that Governor answers itself go to the ASGI application unchanged.
"""

import asyncio
import logging
from collections.abc import Callable

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from governor.gateway.app import LOCAL_PATHS
from governor.gateway.exchange import ClientExchange

log = logging.getLogger("governor.protocol")

# How long the rest of a refused body is read and dropped.
DRAIN_S = 5.0


def is_local(path: str) -> bool:
    """Whether the ASGI application answers a path; every other one is relayed to a worker."""
    return any(path == local or path.startswith(local + "/") for local in LOCAL_PATHS)


class GovernorProtocol(HttpToolsProtocol):
    """One client connection. `serve`, `refuse_body` and `max_body_bytes` are set by
    `protocol_class`.

    Requests of one connection are served one after the other. What the client sends before its
    answer is complete waits unparsed; further requests in the same read are dropped and the
    connection closes after the answer, which tells the client to send them again
    (RFC 9112 §9.3.2).
    """

    serve: Callable[[ClientExchange], None]
    refuse_body: Callable[[ClientExchange], None]
    max_body_bytes = 16 * 1024 * 1024

    _hot = False
    _method = "POST"
    _target = ""
    _parts: list[bytes]
    _size = 0
    _exchange: ClientExchange | None = None
    _stash: bytearray
    _close_after = False
    # The body was refused: what still comes of it is read and dropped, so that the client reads
    # the refusal instead of a connection reset.
    _draining = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._stash = bytearray()

    def on_message_begin(self) -> None:
        if self._exchange is not None or self._draining or self._local_open:
            self._close_after = True
            if self._local_open:
                self.cycle.keep_alive = False
            return
        super().on_message_begin()

    @property
    def _local_open(self) -> bool:
        """Whether the ASGI application has not answered its request yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def on_url(self, url: bytes) -> None:
        if not self._close_after:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._close_after:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._close_after:
            return
        self._target = _origin_form(self.url)
        self._method = self.parser.get_method().decode("ascii")
        self._hot = not is_local(self._target.partition("?")[0])
        if not self._hot:
            super().on_headers_complete()
            return
        self._parts, self._size = [], 0
        if self._announced_bytes() > self.max_body_bytes:
            self._refuse()
        elif self.expect_100_continue:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _announced_bytes(self) -> int:
        lengths = [value for name, value in self.headers if name == b"content-length"]
        return int(lengths[0]) if lengths and lengths[0].isdigit() else 0

    def on_body(self, body: bytes) -> None:
        if self._close_after or self._draining:
            return
        if not self._hot:
            super().on_body(body)
            return
        self._size += len(body)
        if self._size <= self.max_body_bytes:
            self._parts.append(body)
        else:
            self._refuse()

    def on_message_complete(self) -> None:
        if self._draining:
            self._end_draining()
            return
        if self._close_after:
            return
        if not self._hot:
            super().on_message_complete()
            return
        version = self.parser.get_http_version()
        keep_alive = version != "1.0" and self.parser.should_keep_alive()
        self._begin(b"".join(self._parts), keep_alive=keep_alive)
        self._parts = []

    def _begin(self, body: bytes, *, keep_alive: bool) -> None:
        exchange = self._made(body, keep_alive=keep_alive)
        try:
            self.serve(exchange)
        except Exception:
            # The parser would answer 400 for it, beside what may be answered already.
            log.exception("a request could not be served")
            exchange.abort()

    def _refuse(self) -> None:
        """The body is too large: answer at once, then drop what still comes for a while."""
        self._parts, self._draining = [], True
        if self.expect_100_continue and not self._size:
            self._close_after = True  # the client waits for our word and sends no body
        else:
            self.loop.call_later(DRAIN_S, self._end_draining)
        self.refuse_body(self._made(b"", keep_alive=False))
        if self._close_after:
            self._end_draining()

    def _end_draining(self) -> None:
        self._close_after = True
        if not self.transport.is_closing():
            self.transport.close()

    def _made(self, body: bytes, *, keep_alive: bool) -> ClientExchange:
        exchange = ClientExchange(
            self.transport,
            self._method,
            self._target,
            _combined(self.headers),
            body,
            keep_alive=keep_alive,
            finished=self._finished,
            chunks=self.parser.get_http_version() != "1.0",
            paused=self.flow.write_paused,
        )
        self._exchange = exchange
        return exchange

    def _finished(self) -> None:
        """The exchange's response is complete: next request, keep-alive timer, or close."""
        exchange, self._exchange = self._exchange, None
        self.server_state.total_requests += 1
        assert exchange is not None
        if self._draining:
            return
        if self._close_after or not exchange.keep_alive:
            self.transport.close()
            return
        self._unset_keepalive_if_required()
        if self._stash:
            self.loop.call_soon(self._unstash)
            return
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def data_received(self, data: bytes) -> None:
        if self.parser is None or (self._close_after and not self._draining):
            return
        if self._exchange is not None or self._stash:
            # The client talks before its answer is complete; keep reading so that its going away
            # is noticed, but not without bound.
            self._stash += data
            if len(self._stash) > self.max_body_bytes:
                self.transport.close()
            return
        super().data_received(data)

    def _unstash(self) -> None:
        """Parse what came early, in the order in which it came."""
        data, self._stash = bytes(self._stash), bytearray()
        if self.parser is not None and not self.transport.is_closing():
            super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """A request that cannot be parsed; one that is being answered is answered first."""
        if self._exchange is not None:
            self._close_after, self._exchange.keep_alive = True, False
        elif not self.transport.is_closing():
            super().send_400_response(msg)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._exchange is not None:
            self._exchange.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._exchange is not None:
            self._exchange.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        exchange, self._exchange = self._exchange, None
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        if exchange is not None:
            exchange.connection_lost()

    def shutdown(self) -> None:
        """Graceful stop: an open exchange finishes first, then the connection closes."""
        if self._exchange is not None:
            self._close_after = True
            self._exchange.keep_alive = False
        else:
            super().shutdown()


def _origin_form(url: bytes) -> str:
    """The target without scheme and authority (RFC 9112 §3.2.2 lets clients send those)."""
    if not url.startswith(b"/"):
        parsed = httptools.parse_url(url)
        url = (parsed.path or b"/") + (b"?" + parsed.query if parsed.query else b"")
    return url.decode("latin-1")


def _combined(headers: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by name; a repeated one becomes one list (RFC 9110 §5.3)."""
    combined: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        combined[name] = f"{combined[name]}, {value}" if name in combined else value
    return combined


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
