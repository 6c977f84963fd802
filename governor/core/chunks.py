"""A stream chunk of an OpenAI-compatible worker: its shape, a decoder on the standard library, and
the removal of members without decoding. Does not judge what the chunk means.

Shapes: vLLM (`reasoning`, `token_ids`, `prompt_token_ids`, continuous `usage`), SGLang
(`reasoning_content`, `matched_stop`, `usage.reasoning_tokens`), llama.cpp (`timings`), DeepSeek
(`prompt_cache_hit_tokens`). Unknown members are ignored; null and missing are the same: unknown.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NoReturn, TypeVar

from governor.core.errors import UpstreamProtocolError

T = TypeVar("T")


# Neither frozen nor with slots: these are made per chunk on the hot path. Freezing triples the cost
# of making one, and with slots msgspec takes four times as long to fill one (it finds an unset slot
# by way of an exception). Nobody changes them.
@dataclass
class Delta:
    """What one choice gained. `reasoning` is vLLM's name, `reasoning_content` everybody else's."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Any] | None = None
    refusal: str | None = None


@dataclass
class ChunkChoice:
    """One choice of a chunk: `delta` in chat, `text` in completions.

    `token_ids` are the ids that this chunk added, where the worker gives them.
    """

    index: int = 0
    delta: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: Any = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


@dataclass
class Usage:
    """Token counts so far. A count that the worker does not give is None.

    `reasoning_tokens` is the worker's own count, wherever it puts it; vLLM says 0 when the start
    tag stood in the prompt. `cached_tokens` are prompt tokens that were not computed again.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    completion_tokens_details: dict[str, Any] | None = None
    prompt_tokens_details: dict[str, Any] | None = None
    prompt_cache_hit_tokens: int | None = None
    reasoning_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.completion_tokens_details and self.reasoning_tokens is None:
            self.reasoning_tokens = _count(self.completion_tokens_details, "reasoning_tokens")

    @property
    def cached_tokens(self) -> int | None:
        """Under either name that workers use."""
        details = self.prompt_tokens_details
        cached = _count(details, "cached_tokens") if details else None
        return self.prompt_cache_hit_tokens if cached is None else cached


@dataclass
class Chunk:
    """One `data:` payload. `error` is a failure that arrives inside a stream, in one form for the
    three that workers use: an object, a bare string, or `object: "error"` with `message`."""

    id: str | None = None
    object: str | None = None
    created: int | float | None = None
    model: str | None = None
    choices: list[ChunkChoice] = field(default_factory=list)
    usage: Usage | None = None
    error: dict[str, Any] | None = None
    prompt_token_ids: list[int] | None = None
    governor_landing: dict[str, Any] | None = None
    message: str | None = None
    type: str | None = None
    code: int | str | None = None

    def __post_init__(self) -> None:
        if self.object == "error" and self.error is None:
            self.error = {"message": self.message, "type": self.type, "code": self.code}


def decode_chunk(data: bytes) -> Chunk:
    """Decode one payload with the standard library.

    Raises UpstreamProtocolError for what is not JSON, not an object, or has a known member of the
    wrong type. Integral floats pass as integers, null as missing.
    """
    try:
        found = _DECODER.decode(str(data, "utf-8"))
        if _SURROGATE.search(data):
            json.dumps(found, ensure_ascii=False).encode()
        return _chunk(_object(found))
    except (ValueError, RecursionError) as error:
        raise UpstreamProtocolError(f"malformed chunk: {error}") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def _chunk(found: dict[str, Any]) -> Chunk:
    error = found.get("error")
    return Chunk(
        id=_typed(found, "id", str),
        object=_typed(found, "object", str),
        created=_number(found, "created"),
        model=_typed(found, "model", str),
        choices=[_choice(_object(choice)) for choice in _typed(found, "choices", list) or ()],
        usage=_optional(found, "usage", _usage),
        error={"message": error} if isinstance(error, str) else _typed(found, "error", dict),
        prompt_token_ids=_ids(found, "prompt_token_ids"),
        governor_landing=_typed(found, "governor_landing", dict),
        message=_typed(found, "message", str),
        type=_typed(found, "type", str),
        code=_int_or_str(found, "code"),
    )


def _choice(found: dict[str, Any]) -> ChunkChoice:
    index = _int(found, "index")
    return ChunkChoice(
        index=0 if index is None else index,
        delta=_optional(found, "delta", _delta),
        text=_typed(found, "text", str),
        finish_reason=_typed(found, "finish_reason", str),
        stop_reason=_int_or_str(found, "stop_reason"),
        logprobs=found.get("logprobs"),
        token_ids=_ids(found, "token_ids"),
        prompt_token_ids=_ids(found, "prompt_token_ids"),
    )


def _delta(found: dict[str, Any]) -> Delta:
    return Delta(
        role=_typed(found, "role", str),
        content=_typed(found, "content", str),
        reasoning=_typed(found, "reasoning", str),
        reasoning_content=_typed(found, "reasoning_content", str),
        tool_calls=_typed(found, "tool_calls", list),
        refusal=_typed(found, "refusal", str),
    )


def _usage(found: dict[str, Any]) -> Usage:
    return Usage(
        prompt_tokens=_int(found, "prompt_tokens"),
        completion_tokens=_int(found, "completion_tokens"),
        total_tokens=_int(found, "total_tokens"),
        completion_tokens_details=_typed(found, "completion_tokens_details", dict),
        prompt_tokens_details=_typed(found, "prompt_tokens_details", dict),
        prompt_cache_hit_tokens=_int(found, "prompt_cache_hit_tokens"),
        reasoning_tokens=_int(found, "reasoning_tokens"),
    )


def _object(found: object) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ValueError(f"expected an object, got {type(found).__name__}")
    return found


def _optional(found: dict[str, Any], name: str, build: Callable[[dict[str, Any]], T]) -> T | None:
    value = found.get(name)
    return None if value is None else build(_object(value))


def _typed(found: dict[str, Any], name: str, kind: type[T]) -> T | None:
    value = found.get(name)
    if value is None or isinstance(value, kind):
        return value
    raise ValueError(f"{name} is a {type(value).__name__}")


def _integer(value: object, name: str) -> int:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(f"{name} is not an integer")


def _int(found: dict[str, Any], name: str) -> int | None:
    value = found.get(name)
    return None if value is None else _integer(value, name)


def _number(found: dict[str, Any], name: str) -> int | float | None:
    value = found.get(name)
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    raise ValueError(f"{name} is not a number")


def _int_or_str(found: dict[str, Any], name: str) -> int | str | None:
    value = found.get(name)
    return value if isinstance(value, str) else _int(found, name)


def _ids(found: dict[str, Any], name: str) -> list[int] | None:
    values = _typed(found, name, list)
    return None if values is None else [_integer(value, name) for value in values]


def _count(details: dict[str, Any], name: str) -> int | None:
    value = details.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
# A value without brackets inside it, but for one flat array: token ids.
_FLAT_VALUE = re.compile(rb"\s*(?:\[[^\[\]{}\"]*+\]|" + _STRING + rb'|[^\s"{}\[\],]+)', re.DOTALL)
_BRACKET = re.compile(rb'(?:[^"{}\[\]]++|' + _STRING + rb")*+([{}\[\]])", re.DOTALL)
_COMMA = re.compile(rb"\s*,\s*")
# What closes behind a member of the payload, and of an object in one of the payload's arrays.
_PLACES = (b"}", b"}]}")
_CLOSER = {b"{": b"}", b"[": b"]"}


@lru_cache(maxsize=64)
def _patterns(names: tuple[bytes, ...]) -> tuple[re.Pattern[bytes], re.Pattern[bytes]]:
    """Finders of the first wanted key, and of the next wanted key (group 1) or bracket (group 2).

    A quote inside a JSON string always has a backslash before it, so text that spells out a member
    is never taken for one.
    """
    key = rb'"(?:' + b"|".join(map(re.escape, names)) + rb')"\s*:'
    skipped = rb'(?:[^"{}\[\]]++|(?!' + key + rb")" + _STRING + rb")*+"
    step = re.compile(skipped + rb"(?:(" + key + rb")|([{}\[\]]))", re.DOTALL)
    return re.compile(rb"(?<!\\)" + key), step


def strip_fields(raw_event: bytes, names: tuple[bytes, ...]) -> bytes:
    """The event without the members called `names` of its JSON payload and of the objects in the
    payload's arrays (`choices`). Everything else, deeper members of those names included, keeps its
    bytes. Works from the first such key to the end: in well-formed JSON the brackets that close
    behind a key tell where it stands, so the text in front of it, usually most of the event, is
    never looked at. What is not well-formed, or lies on several data lines, is left as it is."""
    places = [at for name in names if (at := raw_event.find(name)) > 0]
    if not places:
        return raw_event
    first, step = _patterns(names)
    found = first.search(raw_event, min(places) - 1)
    if found is None or raw_event.count(b"\ndata") > (not raw_event.startswith(b"data")):
        return raw_event
    spans = _spans(raw_event, found.start(), step)
    return _without(raw_event, spans) if spans else raw_event


def _spans(raw: bytes, position: int, step: re.Pattern[bytes]) -> list[tuple[int, int]]:
    """Start of key and end of value of each member to go, in order. None, if brackets mismatch."""
    # Members with the brackets that will close what opened before them, and how many closed.
    members: list[tuple[int, int, bytes, int]] = []
    opened = closed = b""
    while found := step.match(raw, position):
        position = found.end()
        bracket = found[2]
        if bracket is None:
            position = _value_end(raw, position)
            if position < 0:
                return []
            members.append((found.start(1), position, opened, len(closed)))
            rest = raw[position:].rstrip()
            if not opened and rest in _PLACES:
                closed += rest
                break
        elif bracket in _CLOSER:
            opened = _CLOSER[bracket] + opened
        elif not opened:
            closed += bracket
        elif opened.startswith(bracket):
            opened = opened[1:]
        else:
            return []
    return [
        (start, end) for start, end, inner, before in members if inner + closed[before:] in _PLACES
    ]


def _value_end(raw: bytes, position: int) -> int:
    """Where the value that starts at `position` ends, or -1."""
    flat = _FLAT_VALUE.match(raw, position)
    if flat is not None:
        return flat.end()
    depth = 0
    while found := _BRACKET.match(raw, position):
        position = found.end()
        depth += 1 if found[1] in _CLOSER else -1
        if depth == 0:
            return position
    return -1


def _without(raw: bytes, spans: list[tuple[int, int]]) -> bytes:
    """`raw` without those members, and without one comma for each."""
    kept: list[bytes] = []
    last = 0
    for start, end in spans:
        before = raw[last:start].rstrip()
        if before.endswith(b","):
            before = before[:-1]
        elif comma := _COMMA.match(raw, end):
            end = comma.end()
        kept.append(before)
        last = end
    kept.append(raw[last:])
    return b"".join(kept)
