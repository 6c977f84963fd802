"""Members are removed from an event without touching any other byte."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.chunks import strip_fields
from governor.core.sse import SseDecoder, encode_event

DATA = Path(__file__).parent.parent / "data"
NAMES = (b"token_ids", b"prompt_token_ids", b"logprobs", b"usage")


def removed(payload: Any, names: tuple[bytes, ...]) -> Any:
    """Decode-remove-encode: members of the payload, and of objects in the payload's arrays."""
    wanted = {name.decode() for name in names}
    if not isinstance(payload, dict):
        return payload

    def without(found: Any) -> Any:
        if not isinstance(found, dict):
            return found
        return {key: value for key, value in found.items() if key not in wanted}

    return {
        key: [without(item) for item in value] if isinstance(value, list) else value
        for key, value in without(payload).items()
    }


members = st.sampled_from(
    ["token_ids", "prompt_token_ids", "logprobs", "usage", "choices", "delta", "content", "x", "{"]
)
texts = st.text(alphabet='"\\{}[],: abtoken_ids\n', max_size=14) | st.sampled_from(
    ['"token_ids":[1],', ',"usage":{}', '\\"usage\\":1', "token_ids", '{"usage":1}', "usage"]
)
values = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
payloads = st.recursive(
    values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(members, inner, max_size=5),
    max_leaves=25,
)


@given(
    st.dictionaries(members | texts, payloads, max_size=6),
    st.sampled_from([(",", ":"), (", ", ": "), (" ,  ", " : ")]),
    st.lists(st.sampled_from(NAMES), min_size=1, unique=True).map(tuple),
)
def test_equals_decoding_removing_and_encoding(
    payload: dict[str, Any], separators: tuple[str, str], names: tuple[bytes, ...]
) -> None:
    event = encode_event(json.dumps(payload, separators=separators).encode())
    stripped = strip_fields(event, names)
    assert stripped.startswith(b"data: ")
    assert stripped.endswith(b"\n\n")
    want = removed(payload, names)
    assert json.loads(stripped[6:]) == want
    if separators == (",", ":"):
        assert stripped == encode_event(json.dumps(want, separators=separators).encode())
    elif want == payload:
        assert stripped == event


@pytest.mark.parametrize("name", ["vllm_chat_logprobs.sse", "vllm_reasoning_parser.sse"])
def test_recorded_events_keep_every_other_byte(name: str) -> None:
    changed = 0
    for event in SseDecoder().feed((DATA / name).read_bytes()):
        stripped = strip_fields(event.raw, NAMES)
        changed += stripped != event.raw
        if event.data == b"[DONE]":
            assert stripped == event.raw
        else:
            assert event.data is not None
            want = json.dumps(
                removed(json.loads(event.data), NAMES), separators=(",", ":"), ensure_ascii=False
            )
            assert stripped == b"data: " + want.encode() + b"\n\n"
    assert changed


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'{"token_ids":[1],"a":1}', b'{"a":1}'),
        (b'{"a":1,"token_ids":[1]}', b'{"a":1}'),
        (b'{"token_ids":[1],"usage":null}', b"{}"),
        (b'{"token_ids":[1],"usage":null,"a":1}', b'{"a":1}'),
        (b'{"a":{"usage":{"usage":1}}}', b'{"a":{"usage":{"usage":1}}}'),
        (b'{"usage":{"usage":1,"choices":[{"usage":2}]},"a":"}"}', b'{"a":"}"}'),
        (b'{"choices":[{"usage":1},{"usage":2,"b":3}]}', b'{"choices":[{},{"b":3}]}'),
        (b'{"a":",\\"token_ids\\":[1]"}', b'{"a":",\\"token_ids\\":[1]"}'),
        (b'{"a":["token_ids"],"token_ids":7}', b'{"a":["token_ids"]}'),
    ],
)
def test_places_and_commas(before: bytes, after: bytes) -> None:
    assert strip_fields(encode_event(before), NAMES) == encode_event(after)


@pytest.mark.parametrize(
    "event",
    [
        b": token_ids\n\n",
        b"data: [DONE]\n\n",
        b'data: {"usage":{"a":1\n\n',
        b'data: {"usage":[{"a":1}}\n\n',
        b'data: {"usage":\n\n',
        b'data: {"a":1,\ndata: "usage":2}\n\n',
        b'event: x\ndata: {"a":1,\ndata: "usage":2}\n\n',
    ],
)
def test_what_is_no_single_whole_payload_stays_as_it_is(event: bytes) -> None:
    assert strip_fields(event, NAMES) == event


def test_fields_around_the_data_and_crlf_stay() -> None:
    event = b'id: 1\r\nevent: x\r\ndata: {"a":1,"usage":2}\r\n\r\n'
    assert strip_fields(event, NAMES) == b'id: 1\r\nevent: x\r\ndata: {"a":1}\r\n\r\n'


def test_nothing_to_strip_gives_the_same_object() -> None:
    event = b'data: {"a":1}\n\n'
    assert strip_fields(event, ()) is event
    assert strip_fields(event, NAMES) is event
