"""Server-sent events: bytes to events and back, incremental, with a bounded buffer. Knows nothing
of what the events carry.

Parsing follows the WHATWG HTML standard, §9.2.6, and keeps each event's exact bytes, so that an
unchanged event can be forwarded unchanged.
"""

import re
from dataclasses import dataclass

from governor.core.errors import UpstreamProtocolError

DEFAULT_MAX_EVENT_BYTES = 4 * 1024 * 1024

_BOM = b"\xef\xbb\xbf"
# Two line ends in a row. Atomic, so that one CRLF is never read as two line ends.
_BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE_END = re.compile(rb"\r\n|\n|\r")


# Not frozen: made once per event on the hot path, and a frozen one costs three times as much.
@dataclass(slots=True)
class SseEvent:
    """One event. `raw` is its exact bytes with the closing blank line; `data` is its data lines
    joined by LF, or None where it has none (comments, lone fields, blank lines)."""

    raw: bytes
    data: bytes | None


class SseDecoder:
    """Incremental decoder. The raws of all events and then `pending` are the input, exactly.

    An event that ends in a bare CR waits for one more byte, which may be the LF of the same line
    end. A longer event than `max_event_bytes` raises UpstreamProtocolError, whose `decoded` holds
    the events before it; the decoder is of no use after that.
    """

    __slots__ = ("_at_start", "_max_event_bytes", "_pending", "_scanned")

    def __init__(self, max_event_bytes: int = DEFAULT_MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._pending = bytearray()
        self._scanned = 0
        self._at_start = True

    @property
    def pending(self) -> bytes:
        """Bytes of an event whose end has not been seen."""
        return bytes(self._pending)

    def feed(self, data: bytes) -> list[SseEvent]:
        """Decode the next bytes of the body; `data` may be empty."""
        pending = self._pending
        if pending:
            pending += data
            # A blank line has at most four bytes, of which three may have been seen.
            if not _BLANK_LINE.search(pending, max(0, self._scanned - 3)):
                self._scanned = len(pending)
                if self._scanned > self._max_event_bytes:
                    raise self._too_long([])
                return []
            data = bytes(pending)
            pending.clear()
        events: list[SseEvent] = []
        position = self._events(data, events) if b"\r" in data else self._lf_events(data, events)
        if position < len(data):
            pending += data[position:]
            if len(pending) > self._max_event_bytes:
                raise self._too_long(events)
        self._scanned = len(pending)
        return events

    def finish(self) -> list[SseEvent]:
        """The body has ended. Gives an event held back for a possible LF; an unfinished event stays
        in `pending` and is not an event, as the standard wants."""
        data = bytes(self._pending)
        found = _BLANK_LINE.search(data)
        if found is None:
            return []
        self._pending.clear()
        self._scanned = 0
        return [self._event(data)]

    def _lf_events(self, data: bytes, events: list[SseEvent]) -> int:
        """The common case: no CR anywhere, one data line per event."""
        position = 0
        find = data.find
        while (end := find(b"\n\n", position)) >= 0:
            after = end + 2
            if after - position > self._max_event_bytes:
                raise self._too_long(events)
            if data.startswith(b"data: ", position) and find(b"\n", position, end) < 0:
                self._at_start = False
                events.append(SseEvent(data[position:after], data[position + 6 : end]))
            else:
                events.append(self._event(data[position:after]))
            position = after
        return position

    def _events(self, data: bytes, events: list[SseEvent]) -> int:
        position, size = 0, len(data)
        while found := _BLANK_LINE.search(data, position):
            end = found.end()
            if end == size and data.endswith(b"\r"):
                break
            if end - position > self._max_event_bytes:
                raise self._too_long(events)
            events.append(self._event(data[position:end]))
            position = end
        return position

    def _event(self, raw: bytes) -> SseEvent:
        block = raw
        if self._at_start:
            self._at_start = False
            block = raw.removeprefix(_BOM)
        values: list[bytes] = []
        for line in _LINE_END.split(block):
            name, _, value = line.partition(b":")
            if name == b"data":
                values.append(value.removeprefix(b" "))
        return SseEvent(raw, b"\n".join(values) if values else None)

    def _too_long(self, events: list[SseEvent]) -> UpstreamProtocolError:
        return UpstreamProtocolError(
            f"event longer than {self._max_event_bytes} bytes", decoded=tuple(events)
        )


def encode_event(data: bytes) -> bytes:
    """One event with that data; line ends inside become data lines of their own."""
    if b"\n" not in data and b"\r" not in data:
        return b"data: " + data + b"\n\n"
    return b"".join(b"data: " + line + b"\n" for line in _LINE_END.split(data)) + b"\n"


def encode_comment(text: bytes) -> bytes:
    """One comment event, which clients ignore: keeps a silent connection open."""
    return b"".join(b": " + line + b"\n" for line in _LINE_END.split(text)) + b"\n"
