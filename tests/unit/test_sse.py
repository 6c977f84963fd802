"""Server-sent events: exact bytes and data, however the input is cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.errors import UpstreamProtocolError
from governor.core.sse import SseDecoder, SseEvent, encode_comment, encode_event

STREAMS: dict[str, tuple[bytes, list[bytes | None], bytes]] = {
    "line feeds": (b"data: a\n\ndata: b\n\n", [b"a", b"b"], b""),
    "crlf": (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"], b""),
    "cr": (b"data: a\r\rdata: b\r\r", [b"a", b"b"], b""),
    "mixed": (b"data: a\r\n\ndata: b\n\r\ndata: c\n\n", [b"a", b"b", b"c"], b""),
    "cr then crlf": (b"data: a\r\r\ndata: b\n\n", [b"a", b"b"], b""),
    "several data lines": (b"data: a\ndata: b\n\n", [b"a\nb"], b""),
    "several crlf data lines": (b"data: a\r\ndata:b\r\ndata\r\n\r\n", [b"a\nb\n"], b""),
    "no blank after the colon": (b"data:a\n\ndata:  b\n\n", [b"a", b" b"], b""),
    "empty data": (b"data:\n\ndata\n\n", [b"", b""], b""),
    "comments": (b": ping\n\n:\n\ndata: a\n: inside\n\n", [None, None, b"a"], b""),
    "other fields": (b"event: x\nid: 1\ndata: a\nretry: 5\n\nid: 2\n\n", [b"a", None], b""),
    "not quite data": (b"datax: a\n\n data: b\n\nDATA: c\n\n", [None, None, None], b""),
    "blank lines": (b"\n\n\ndata: a\n\n", [None, b"a"], b""),
    "byte order mark": (b"\xef\xbb\xbfdata: a\n\ndata: b\n\n", [b"a", b"b"], b""),
    "mark only at the start": (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", [b"a", None], b""),
    "unfinished": (b"data: a\n\ndata: b\n", [b"a"], b"data: b\n"),
    "unfinished crlf": (b"data: a\r\n\r\ndata: b\r\n", [b"a"], b"data: b\r\n"),
    "utf-8": ("data: žlutý 🐎\n\ndata: ≤\n\n".encode(), ["žlutý 🐎".encode(), "≤".encode()], b""),
    "done": (b'data: {"a":1}\n\ndata: [DONE]\n\n', [b'{"a":1}', b"[DONE]"], b""),
}  # fmt: skip


def decode(*parts: bytes) -> tuple[list[SseEvent], bytes]:
    decoder = SseDecoder()
    events = [event for part in parts for event in decoder.feed(part)]
    return events + decoder.finish(), decoder.pending


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@pytest.mark.parametrize("name", STREAMS)
def test_decodes_the_same_whole_bytewise_and_split_anywhere(name: str) -> None:
    stream, data, pending = STREAMS[name]
    whole = decode(stream)
    assert [event.data for event in whole[0]] == data
    assert whole[1] == pending
    assert b"".join(event.raw for event in whole[0]) + pending == stream
    assert decode(*(stream[i : i + 1] for i in range(len(stream)))) == whole
    for cut in range(len(stream) + 1):
        assert decode(stream[:cut], stream[cut:]) == whole


BITS = [b"data: ", b"data:", b":", b"x", b"\n", b"\r", b"\r\n", b"\xe2", b"\xef\xbb\xbf"]


@given(
    st.lists(st.sampled_from(BITS), max_size=30).map(b"".join),
    st.lists(st.integers(0, 100), max_size=8),
)
def test_raws_and_pending_are_the_input_and_cuts_do_not_matter(
    stream: bytes, cuts: list[int]
) -> None:
    events, pending = decode(*pieces(stream, cuts))
    assert b"".join(event.raw for event in events) + pending == stream
    assert (events, pending) == decode(stream)


def test_an_event_is_given_with_the_read_that_completes_it() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: a\n\ndata: b") == [SseEvent(b"data: a\n\n", b"a")]
    assert decoder.pending == b"data: b"
    assert decoder.feed(b"\n\n") == [SseEvent(b"data: b\n\n", b"b")]
    assert decoder.pending == b""


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b""])
def test_an_event_over_the_limit_raises_whole_or_cut_and_keeps_those_before(end: bytes) -> None:
    stream = b"data: a\n\ndata: " + b"x" * 60 + end
    for parts in ([stream], [stream[:9], *(stream[i : i + 1] for i in range(9, len(stream)))]):
        decoder = SseDecoder(max_event_bytes=40)
        seen: list[object] = []
        with pytest.raises(UpstreamProtocolError) as caught:  # noqa: PT012
            for part in parts:
                seen += decoder.feed(part)
        assert [*seen, *caught.value.decoded] == [SseEvent(b"data: a\n\n", b"a")]


def test_an_event_at_the_limit_passes() -> None:
    event = b"data: " + b"x" * 32 + b"\n\n"
    decoder = SseDecoder(max_event_bytes=len(event))
    assert [e.raw for e in decoder.feed(event[:7]) + decoder.feed(event[7:] + event)] == [event] * 2


def test_a_large_event_in_small_reads_takes_linear_time() -> None:
    decoder = SseDecoder()
    events: list[SseEvent] = []
    data = b"x" * 200_000
    for part in pieces(encode_event(data), list(range(0, 200_000, 10))):
        events += decoder.feed(part)
    assert [event.data for event in events] == [data]


@given(st.text())
def test_an_encoded_event_decodes_to_its_data(text: str) -> None:
    data = text.encode()
    events, pending = decode(encode_event(data))
    assert pending == b""
    assert [e.data for e in events] == [data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")]


@given(st.text())
def test_an_encoded_comment_carries_no_data(text: str) -> None:
    events, pending = decode(encode_comment(text.encode()))
    assert pending == b""
    assert [event.data for event in events] == [None]
