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

    `on_closed`, `on_pause` and `on_resume` are set by whoever serves the exchange.
    """

    __slots__ = (
        "_as_event",
        "_chunked",
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
    ) -> None:
        self._transport = transport
        self._finished = finished
        self._chunked = False
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
        if content_length is None:
            self._chunked = True
            parts.append(b"transfer-encoding: chunked\r\ncache-control: no-cache\r\n")
        else:
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
        if self.closed or not data:
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
        """Close the connection in mid-response."""
        self._done = self.closed = True
        self._transport.abort()

    def connection_lost(self) -> None:
        """The client's connection is gone."""
        self.closed = True
        if not self._done:
            self._done = True
            if self.on_closed is not None:
                self.on_closed()
