"""Tool calls in the Hermes syntax: parsing them out of a text stream, and the forced wrapper."""

import json
from dataclasses import dataclass

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_ARGUMENTS = '"arguments"'


@dataclass(frozen=True, slots=True)
class ContentPiece:
    """Plain answer text."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins; `index` counts the calls of one choice."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next piece of a call's arguments, JSON text."""

    index: int
    text: str


ToolEvent = ContentPiece | CallStart | CallArguments


class HermesParser:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>` in a stream of answer text.

    Text outside the tags passes through; what may become a tag is held back. Arguments stream once
    the name is known. A call that is broken off or is not JSON comes out as plain text by `finish`.
    """

    def __init__(self) -> None:
        self._buffer = ""
        self._inside = False
        self._index = -1
        self._started = False
        self._sent = 0

    @property
    def called(self) -> bool:
        """Whether any call has started."""
        return self._index >= 0

    def feed(self, text: str) -> list[ToolEvent]:
        """Takes answer text and returns what it completes."""
        self._buffer += text
        events: list[ToolEvent] = []
        while self._inside_step(events) if self._inside else self._outside_step(events):
            pass
        return events

    def finish(self) -> list[ToolEvent]:
        """Releases what was held back when the text ends."""
        rest, self._buffer = self._buffer, ""
        if not rest:
            return []
        if not self._inside:
            return [ContentPiece(rest)] if rest.strip() or not self.called else []
        if self._started:
            return []
        return [ContentPiece(OPEN + rest)]

    def _outside_step(self, events: list[ToolEvent]) -> bool:
        at = self._buffer.find(OPEN)
        if at >= 0:
            # Blank space before a call is layout, not content.
            before = self._buffer[:at].rstrip()
            if before:
                events.append(ContentPiece(before))
            self._buffer = self._buffer[at + len(OPEN) :]
            self._inside, self._started, self._sent = True, False, 0
            return True
        safe = len(self._buffer) - _overlap(self._buffer, OPEN)
        ready = self._buffer[:safe].rstrip()
        if ready:
            events.append(ContentPiece(ready))
        self._buffer = self._buffer[len(ready) :]
        return False

    def _inside_step(self, events: list[ToolEvent]) -> bool:
        end = self._buffer.find(CLOSE)
        whole = self._buffer if end < 0 else self._buffer[:end]
        self._stream_arguments(whole, events)
        if end < 0:
            return False
        if not self._started:
            self._complete(whole, events)
        self._buffer = self._buffer[end + len(CLOSE) :]
        self._inside = False
        return True

    def _stream_arguments(self, whole: str, events: list[ToolEvent]) -> None:
        at = whole.find(_ARGUMENTS)
        if at < 0:
            return
        start = whole.find("{", at)
        if start < 0:
            return
        if not self._started:
            name = _name(whole[:at])
            if name is None:
                return
            self._begin(name, events)
        text = whole[start : _object_end(whole, start)]
        if len(text) > self._sent:
            events.append(CallArguments(self._index, text[self._sent :]))
            self._sent = len(text)

    def _complete(self, whole: str, events: list[ToolEvent]) -> None:
        """A call whose name follows its arguments, or has none: read whole."""
        try:
            call = json.loads(whole)
            name = call["name"]
        except (ValueError, KeyError, TypeError):
            events.append(ContentPiece(OPEN + whole + CLOSE))
            return
        self._begin(str(name), events)
        events.append(CallArguments(self._index, json.dumps(call.get("arguments", {}))))

    def _begin(self, name: str, events: list[ToolEvent]) -> None:
        self._index += 1
        self._started = True
        events.append(CallStart(self._index, name))


class ForcedCall:
    """Writes a call around what the model answers: the wrapper is the server's, the argument the
    model's own text. It makes a tool-call stream with a model that was never trained on tools."""

    def __init__(self, name: str) -> None:
        self._head = f'{OPEN}{{"name": {json.dumps(name)}, "arguments": {{"expression": "'
        self._tail = f'"}}}}{CLOSE}'
        self._begun = False
        self._space = ""

    def feed(self, text: str) -> str:
        """Takes answer text; returns the text of the call. Outer blank space is dropped."""
        text = text if self._begun else text.lstrip()
        body = self._space + text
        stripped = body.rstrip()
        self._space = body[len(stripped) :]
        if not stripped:
            return ""
        head = "" if self._begun else self._head
        self._begun = True
        return head + json.dumps(stripped)[1:-1]

    def finish(self) -> str:
        """The end of the call."""
        return ("" if self._begun else self._head) + self._tail


def _name(head: str) -> str | None:
    at = head.find('"name"')
    if at < 0:
        return None
    start = head.find('"', at + len('"name"'))
    if start < 0:
        return None
    try:
        name, _ = json.JSONDecoder().raw_decode(head[start:])
    except ValueError:
        return None
    return str(name)


def _object_end(text: str, start: int) -> int:
    """Index behind the object that opens at `start`, or the end of the text while it is open."""
    depth, quoted, escaped = 0, False, False
    for i in range(start, len(text)):
        c = text[i]
        if quoted:
            quoted = escaped or c != '"'
            escaped = c == "\\" and not escaped
        elif c == '"':
            quoted = True
        elif c in "{[":
            depth += 1
        elif c in "}]":
            depth -= 1
            if depth == 0:
                return i + 1
    return len(text)


def _overlap(text: str, tag: str) -> int:
    for n in range(min(len(tag) - 1, len(text)), 0, -1):
        if tag.startswith(text[-n:]):
            return n
    return 0
