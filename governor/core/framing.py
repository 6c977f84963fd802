"""HTTP/1.1 response framing: bytes from a worker's connection to head, body and end. Decodes one
response; does not decompress, and does not look into the body.

Framing rules are those of RFC 9112 §6 and §7. Body bytes are never buffered: each piece is handed
on as it arrives, copied once. Heads, chunk-size lines and trailers wait for their end, bounded.
"""

import re
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from governor.core.errors import UpstreamProtocolError, UpstreamReadFailed

MAX_HEAD_BYTES = 64 * 1024
MAX_SIZE_LINE_BYTES = 4 * 1024
MAX_INFORMATIONAL = 16

_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [^\r\n\0]*)?\Z")
_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\r\n\0]*?)[ \t]*\Z")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_PLAIN_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})\r\n")
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\Z")


@dataclass(frozen=True, slots=True)
class Head:
    """Status and fields of the final response. Names are lower case, values stripped.

    `keep_alive` says what the peer offers; ask `ResponseDecoder.reusable` before reusing.
    """

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    keep_alive: bool

    def header(self, name: bytes) -> bytes | None:
        """The first field of that lower-case name, or None."""
        for field_name, value in self.headers:
            if field_name == name:
                return value
        return None


# Not frozen: made once per chunk on the hot path, and a frozen one costs three times as much.
@dataclass(slots=True)
class Body:
    """Some bytes of the body, without framing."""

    data: bytes


@dataclass(frozen=True, slots=True)
class End:
    """The response is whole."""


Decoded: TypeAlias = Head | Body | End


class _State(Enum):
    HEAD = "head"
    LENGTH = "length"
    SIZE_LINE = "size_line"
    CHUNK = "chunk"
    CHUNK_END = "chunk_end"
    TRAILERS = "trailers"
    UNTIL_CLOSE = "until_close"
    ENDED = "ended"
    FAILED = "failed"


class ResponseDecoder:
    """Feed it what the peer sends; it returns what that completes.

    Raises UpstreamProtocolError on a framing fault (with `decoded`, what came before it), and
    UpstreamReadFailed from `finish` when the peer closed inside the response. Informational
    responses are skipped. Bytes behind the end of the response make the connection unusable:
    within one read they leave `reusable` false, in a later `feed` they raise.
    """

    __slots__ = (
        "_head_request",
        "_informational",
        "_keep_alive",
        "_left",
        "_rest",
        "_seen",
        "_state",
    )

    def __init__(self, head_request: bool = False) -> None:
        self._head_request = head_request
        self._informational = 0
        self._keep_alive = False
        self._left = 0
        self._rest = b""
        self._seen = 0
        self._state = _State.HEAD

    @property
    def ended(self) -> bool:
        """The End event has been given."""
        return self._state is _State.ENDED

    @property
    def reusable(self) -> bool:
        """The response ended, the peer keeps the connection, and nothing follows."""
        return self._state is _State.ENDED and self._keep_alive and not self._rest

    def feed(self, data: bytes) -> list[Decoded]:
        """Decode the next bytes of the connection; `data` may be empty."""
        events: list[Decoded] = []
        if not data:
            return events
        self._seen = 0
        if self._rest and self._state is not _State.ENDED:
            self._seen = len(self._rest)
            data = self._rest + data
            self._rest = b""
        try:
            self._decode(data, events)
        except UpstreamProtocolError as error:
            self._state = _State.FAILED
            error.decoded = tuple(events)
            raise
        return events

    def finish(self) -> list[Decoded]:
        """The peer closed its side. Ends a close-delimited body; anything else unfinished raises
        UpstreamReadFailed. After the end it does nothing."""
        if self._state is _State.ENDED:
            self._keep_alive = False
            return []
        if self._state is _State.UNTIL_CLOSE:
            self._state = _State.ENDED
            return [End()]
        state, self._state = self._state, _State.FAILED
        raise UpstreamReadFailed(f"connection closed in state {state.value}")

    def _decode(self, data: bytes, events: list[Decoded]) -> None:
        position, size = 0, len(data)
        while position < size:
            state = self._state
            if state is _State.SIZE_LINE:
                position = self._whole_chunks(data, position, events)
                if position < size:
                    position = self._size_line(data, position)
            elif state is _State.CHUNK or state is _State.LENGTH:
                position = self._body(data, position, events)
            elif state is _State.CHUNK_END:
                position = self._chunk_end(data, position)
            elif state is _State.HEAD:
                position = self._head(data, position, events)
            elif state is _State.TRAILERS:
                position = self._trailers(data, position, events)
            elif state is _State.UNTIL_CLOSE:
                events.append(Body(data[position:]))
                return
            else:
                self._behind_end(data, position, events)
                return

    def _behind_end(self, data: bytes, position: int, events: list[Decoded]) -> None:
        if self._state is _State.FAILED:
            raise UpstreamProtocolError("bytes after a framing fault")
        if not (events and isinstance(events[-1], End)):
            raise UpstreamProtocolError("bytes after the end of the response")
        self._rest = data[position:]

    def _whole_chunks(self, data: bytes, position: int, events: list[Decoded]) -> int:
        """The common read: chunks that lie whole in `data`, sizes without extensions."""
        match = _PLAIN_SIZE.match
        while found := match(data, position):
            start = found.end()
            end = start + int(found[1], 16)
            if end == start or data[end : end + 2] != b"\r\n":
                return position
            events.append(Body(data[start:end]))
            position = end + 2
        return position

    def _wait(self, data: bytes, position: int, limit: int, what: str) -> int:
        """Keep an unfinished line or head for the next read."""
        if len(data) - position > limit:
            raise UpstreamProtocolError(f"{what} longer than {limit} bytes")
        self._rest = data[position:]
        return len(data)

    def _size_line(self, data: bytes, position: int) -> int:
        end = data.find(b"\r\n", position)
        if end < 0:
            return self._wait(data, position, MAX_SIZE_LINE_BYTES, "chunk-size line")
        found = _SIZE.match(data[position:end])
        if found is None or end - position > MAX_SIZE_LINE_BYTES:
            raise UpstreamProtocolError("malformed chunk-size line")
        self._left = int(found[1], 16)
        self._state = _State.CHUNK if self._left else _State.TRAILERS
        return end + 2

    def _body(self, data: bytes, position: int, events: list[Decoded]) -> int:
        piece = data[position : position + self._left]
        events.append(Body(piece))
        self._left -= len(piece)
        if self._left == 0:
            if self._state is _State.CHUNK:
                self._state = _State.CHUNK_END
            else:
                self._end(events)
        return position + len(piece)

    def _chunk_end(self, data: bytes, position: int) -> int:
        line_end = data[position : position + 2]
        if line_end == b"\r\n":
            self._state = _State.SIZE_LINE
            return position + 2
        if line_end == b"\r":
            return self._wait(data, position, 2, "end of chunk")
        raise UpstreamProtocolError("chunk longer than its size line says")

    def _trailers(self, data: bytes, position: int, events: list[Decoded]) -> int:
        """Trailer fields are checked and dropped: nothing here may change a response under way."""
        if data.startswith(b"\r\n", position):
            self._end(events)
            return position + 2
        end = data.find(b"\r\n\r\n", max(position, self._seen - 3))
        if end < 0:
            return self._wait(data, position, MAX_HEAD_BYTES, "trailers")
        _fields(data[position:end].split(b"\r\n"))
        self._end(events)
        return end + 4

    def _head(self, data: bytes, position: int, events: list[Decoded]) -> int:
        found = _HEAD_END.search(data, max(position, self._seen - 3))
        if found is None:
            return self._wait(data, position, MAX_HEAD_BYTES, "response head")
        if found.end() - position > MAX_HEAD_BYTES:
            raise UpstreamProtocolError(f"response head longer than {MAX_HEAD_BYTES} bytes")
        first, *lines = data[position : found.start()].replace(b"\r\n", b"\n").split(b"\n")
        status_line = _STATUS_LINE.match(first)
        if status_line is None:
            raise UpstreamProtocolError(f"malformed status line {first[:64]!r}")
        minor, status = int(status_line[1]), int(status_line[2])
        headers = _fields(lines)
        if status < 200:
            self._informational += 1
            if status == 101 or self._informational > MAX_INFORMATIONAL:
                raise UpstreamProtocolError(f"unexpected informational response {status}")
            return found.end()
        self._choose_framing(minor, status, headers, events)
        return found.end()

    def _choose_framing(
        self,
        minor: int,
        status: int,
        headers: tuple[tuple[bytes, bytes], ...],
        events: list[Decoded],
    ) -> None:
        """RFC 9112 §6.3, in its order."""
        connection = _tokens(headers, b"connection")
        keep_alive = b"close" not in connection and (minor == 1 or b"keep-alive" in connection)
        encodings = _tokens(headers, b"transfer-encoding")
        length = _content_length(headers)
        if encodings and (length is not None or minor == 0):
            # A response framed two ways may have been smuggled: read it, then let go.
            keep_alive = False
        if self._head_request or status in (204, 304):
            state, self._left = _State.ENDED, 0
        elif encodings:
            if b"chunked" in encodings[:-1]:
                raise UpstreamProtocolError("chunked is not the last transfer coding")
            chunked = encodings[-1] == b"chunked"
            state = _State.SIZE_LINE if chunked else _State.UNTIL_CLOSE
        elif length is not None:
            state, self._left = (_State.LENGTH if length else _State.ENDED), length
        else:
            state = _State.UNTIL_CLOSE
        self._keep_alive = keep_alive and state is not _State.UNTIL_CLOSE
        events.append(Head(status, headers, self._keep_alive))
        self._state = state
        if state is _State.ENDED:
            self._end(events)

    def _end(self, events: list[Decoded]) -> None:
        self._state = _State.ENDED
        events.append(End())


def _fields(lines: list[bytes]) -> tuple[tuple[bytes, bytes], ...]:
    fields: list[tuple[bytes, bytes]] = []
    for line in lines:
        found = _FIELD.match(line)
        if found is None:
            raise UpstreamProtocolError(f"malformed field line {line[:64]!r}")
        fields.append((found[1].lower(), found[2]))
    return tuple(fields)


def _tokens(headers: tuple[tuple[bytes, bytes], ...], name: bytes) -> list[bytes]:
    """The comma-separated members of all fields of that name, lower case."""
    values = [value for field_name, value in headers if field_name == name]
    if not values:
        return []
    parts = [part.strip(b" \t").lower() for part in b",".join(values).split(b",")]
    return [part for part in parts if part]


def _content_length(headers: tuple[tuple[bytes, bytes], ...]) -> int | None:
    given = set(_tokens(headers, b"content-length"))
    if not given:
        return None
    value = given.pop()
    if given or not value.isdigit() or len(value) > 15:
        raise UpstreamProtocolError("malformed or contradictory content-length")
    return int(value)
