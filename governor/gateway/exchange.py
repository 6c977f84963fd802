"""ClientExchange: one request of a client on the hot route and the writing of its response.

Knows HTTP/1.1 response framing towards the client and nothing of policy.
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus


def status_line(status: int) -> bytes:
    """`HTTP/1.1 200 OK` with its line end."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return b"HTTP/1.1 %d %s\r\n" % (status, phrase.encode())


class ClientExchange:
    """One parsed request and its response. Created by the protocol, driven by the relay.

    Without `chunks` (HTTP/1.0) a body of unknown length ends with the connection.

    `on_closed`, `on_pause` and `on_resume` are set by whoever serves the exchange.
    """

    __slots__ = (
        "_as_event",
        "_bodiless",
        "_chunked",
        "_chunks",
        "_committed",
        "_done",
        "_finished",
        "_transport",
        "body",
        "closed",
        "headers",
        "keep_alive",
        "method",
        "on_closed",
        "on_pause",
        "on_resume",
        "path",
        "paused",
        "started",
        "target",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        method: str,
        target: str,
        headers: dict[str, str],
        body: bytes,
        *,
        keep_alive: bool,
        finished: Callable[[], None],
        chunks: bool = True,
        paused: bool = False,
    ) -> None:
        self._transport = transport
        self._finished = finished
        self._chunks = chunks
        self._chunked = False
        self._bodiless = method == "HEAD"
        self._committed = False
        self._as_event = False
        self._done = False
        self.method = method
        self.target = target
        self.path = target.partition("?")[0]
        self.headers = headers
        self.body = body
        self.keep_alive = keep_alive
        self.closed = False
        self.paused = paused
        self.started = False
        self.on_closed: Callable[[], None] | None = None
        self.on_pause: Callable[[], None] | None = None
        self.on_resume: Callable[[], None] | None = None

    def send_head(
        self, status: int, headers: tuple[tuple[bytes, bytes], ...], content_length: int | None
    ) -> None:
        """Write the status line and headers; `content_length=None` starts a chunked body.

        After `commit` the status is already told: a later failure becomes an error event.
        """
        if self.closed:
            return
        if self._committed:
            self._as_event = status != 200
            return
        self.started = True
        parts = [status_line(status)]
        for name, value in headers:
            parts.append(b"%s: %s\r\n" % (name, value))
        # RFC 9110 §6.4.1: these have no body, and 204 must not even say how long it is.
        self._bodiless = self._bodiless or status in (204, 304)
        if content_length is None:
            self._chunked = self._chunks and not self._bodiless
            if self._chunked:
                parts.append(b"transfer-encoding: chunked\r\n")
            parts.append(b"cache-control: no-cache\r\n")
        elif content_length or not self._bodiless:
            parts.append(b"content-length: %d\r\n" % content_length)
        if not self.keep_alive:
            parts.append(b"connection: close\r\n")
        parts.append(b"\r\n")
        self._transport.write(b"".join(parts))

    def commit(self, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        """Start a 200 event stream before it is known what will come: the client waits long."""
        if not self.started:
            self.send_head(200, ((b"content-type", b"text/event-stream"), *headers), None)
            self._committed = True

    def write(self, data: bytes) -> None:
        """Write body bytes; an empty chunk would end a chunked body, so it is left out."""
        if self.closed or self._bodiless or not data:
            return
        if self._as_event:
            data = b"data: " + data.replace(b"\n", b" ") + b"\n\n"
        if self._chunked:
            data = b"%x\r\n%s\r\n" % (len(data), data)
        self._transport.write(data)

    def end(self) -> None:
        """The response is complete."""
        if self._done:
            return
        self._done = True
        if not self.closed:
            if self._chunked:
                self._transport.write(b"0\r\n\r\n")
            self._finished()

    def respond(self, status: int, headers: tuple[tuple[bytes, bytes], ...], body: bytes) -> None:
        """A whole response at once."""
        self.send_head(status, headers, len(body))
        self.write(body)
        self.end()

    def abort(self) -> None:
        """Close the connection in mid-response; after its end it is no longer this exchange's."""
        if self._done:
            return
        self._done = self.closed = True
        self._transport.abort()

    @property
    def done(self) -> bool:
        """Whether the response is complete or given up."""
        return self._done

    def pause(self) -> None:
        """The client does not read fast enough."""
        self.paused = True
        if self.on_pause is not None:
            self.on_pause()

    def resume(self) -> None:
        """The client has caught up."""
        self.paused = False
        if self.on_resume is not None:
            self.on_resume()

    def connection_lost(self) -> None:
        """The client's connection is gone."""
        self.closed = True
        if not self._done:
            self._done = True
            if self.on_closed is not None:
                self.on_closed()
