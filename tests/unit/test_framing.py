"""HTTP/1.1 response framing, whole, byte by byte and split at every position."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.errors import UpstreamProtocolError, UpstreamReadFailed
from governor.core.framing import Body, Decoded, End, Head, ResponseDecoder

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n1A;name=value\r\nabcdefghijklmnopqrstuvwxyz\r\n3 \r\n\xe2\x82\xac\r\n"
    b"0\r\nX-Trailer: one\r\nX-Other: two\r\n\r\n"
)
RESPONSES = {
    "chunked": (CHUNKED, b"helloabcdefghijklmnopqrstuvwxyz\xe2\x82\xac"),
    "chunked, no trailers": (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n2\r\n\r\n\r\n0;last\r\n\r\n",
        b"\r\n",
    ),
    "length": (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabcdef", b"abcdef"),
    "length given twice alike": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\nContent-Length: 2\r\n\r\nab",
        b"ab",
    ),
    "length 0": (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b""),
    "informational first": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nz",
        b"z",
    ),
    "204": (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    "304 with a length": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", b""),
    "no reason phrase": (b"HTTP/1.1 200\r\nContent-Length: 1\r\n\r\nq", b"q"),
    "bare line feeds in the head": (b"HTTP/1.1 200 OK\nContent-Length: 1\n\nq", b"q"),
    "empty value": (b"HTTP/1.1 200 OK\r\nX-Empty:\r\nContent-Length:  1 \r\n\r\nq", b"q"),
}


def merged(events: list[Decoded]) -> list[Decoded]:
    """Adjacent bodies joined: how a body is cut depends on the reads."""
    out: list[Decoded] = []
    for event in events:
        if isinstance(event, Body) and out and isinstance(out[-1], Body):
            out[-1] = Body(out[-1].data + event.data)
        else:
            out.append(event)
    return out


def decode(*parts: bytes, head_request: bool = False) -> list[Decoded]:
    decoder = ResponseDecoder(head_request)
    return merged([event for part in parts for event in decoder.feed(part)])


def head_of(wire: bytes) -> Head:
    head = decode(wire)[0]
    assert isinstance(head, Head)
    return head


@pytest.mark.parametrize("name", RESPONSES)
def test_decodes_the_same_whole_bytewise_and_split_anywhere(name: str) -> None:
    wire, body = RESPONSES[name]
    whole = decode(wire)
    assert isinstance(whole[0], Head)
    assert whole[1:] == ([Body(body)] if body else []) + [End()]
    assert decode(*(wire[i : i + 1] for i in range(len(wire)))) == whole
    for cut in range(len(wire) + 1):
        assert decode(wire[:cut], wire[cut:]) == whole


@given(
    st.lists(st.binary(min_size=1, max_size=300), max_size=8),
    st.lists(st.integers(0, 3000), max_size=12),
)
def test_any_chunks_cut_anywhere_give_the_body(chunks: list[bytes], cuts: list[int]) -> None:
    wire = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    wire += b"".join(b"%x\r\n%s\r\n" % (len(c), c) for c in chunks) + b"0\r\n\r\n"
    edges = [0, *sorted(min(cut, len(wire)) for cut in cuts), len(wire)]
    events = decode(*(wire[a:b] for a, b in pairwise(edges)))
    assert b"".join(e.data for e in events if isinstance(e, Body)) == b"".join(chunks)
    assert events[-1] == End()


def test_each_whole_chunk_of_a_read_is_one_body() -> None:
    decoder = ResponseDecoder()
    decoder.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert decoder.feed(b"3\r\nabc\r\n2\r\nde\r\n") == [Body(b"abc"), Body(b"de")]


def test_a_part_of_a_chunk_is_handed_on_at_once() -> None:
    decoder = ResponseDecoder()
    decoder.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert decoder.feed(b"6\r\nabc") == [Body(b"abc")]
    assert decoder.feed(b"def") == [Body(b"def")]
    assert decoder.feed(b"\r") == []
    assert decoder.feed(b"\n0\r\n\r\n") == [End()]
    assert decoder.ended


def test_header_names_are_lower_case_and_the_first_of_a_name_is_found() -> None:
    head = head_of(b"HTTP/1.1 429 Slow Down\r\nRetry-AFTER: 3\r\nretry-after: 4\r\n\r\n")
    assert head.status == 429
    assert head.headers == ((b"retry-after", b"3"), (b"retry-after", b"4"))
    assert head.header(b"retry-after") == b"3"
    assert head.header(b"absent") is None


@pytest.mark.parametrize(
    ("lines", "keep_alive"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: x, Close\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: Keep-Alive\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", False),
    ],
)
def test_keep_alive_follows_version_connection_and_framing(lines: bytes, keep_alive: bool) -> None:
    assert head_of(lines).keep_alive is keep_alive


def test_a_response_to_head_ends_with_its_head() -> None:
    wire = b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"
    assert decode(wire, head_request=True)[1:] == [End()]


def test_a_body_without_length_ends_with_the_connection() -> None:
    decoder = ResponseDecoder()
    events = decoder.feed(b"HTTP/1.1 200 OK\r\n\r\nab")
    events += decoder.feed(b"cd")
    assert not decoder.ended
    events += decoder.finish()
    assert merged(events)[1:] == [Body(b"abcd"), End()]
    assert not decoder.reusable


@pytest.mark.parametrize("cut", range(len(CHUNKED)))
def test_a_connection_that_closes_inside_a_response_is_a_read_failure(cut: int) -> None:
    decoder = ResponseDecoder()
    decoder.feed(CHUNKED[:cut])
    with pytest.raises(UpstreamReadFailed):
        decoder.finish()


def test_closing_after_the_end_is_fine_and_ends_reuse() -> None:
    decoder = ResponseDecoder()
    decoder.feed(RESPONSES["length"][0])
    assert decoder.reusable
    assert decoder.finish() == []
    assert not decoder.reusable


def test_surplus_bytes_in_the_same_read_forbid_reuse_and_lose_nothing() -> None:
    decoder = ResponseDecoder()
    events = decoder.feed(RESPONSES["length"][0] + b"HTTP/1.1 200 OK")
    assert events[-1] == End()
    assert not decoder.reusable


def test_surplus_bytes_in_a_later_read_raise_but_an_empty_read_does_not() -> None:
    decoder = ResponseDecoder()
    decoder.feed(RESPONSES["length"][0])
    assert decoder.feed(b"") == []
    assert decoder.reusable
    with pytest.raises(UpstreamProtocolError):
        decoder.feed(b"x")
    assert not decoder.reusable


CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "wire",
    [
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nname : space\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: b\r\n folded\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: b\rc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, gzip\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 17,
        CHUNKED_HEAD + b"0x5\r\nhello\r\n",
        CHUNKED_HEAD + b"1_0\r\nhello\r\n",
        CHUNKED_HEAD + b"-5\r\nhello\r\n",
        CHUNKED_HEAD + b"\r\nhello\r\n",
        CHUNKED_HEAD + b"5\r\nhello!\r\n",
        CHUNKED_HEAD + b"f" * 16 + b"\r\n",
        CHUNKED_HEAD + b"5;" + b"x" * 5000 + b"\r\nhello\r\n",
        CHUNKED_HEAD + b"5;" + b"x" * 5000,
        CHUNKED_HEAD + b"0\r\nbad trailer\r\n\r\n",
        CHUNKED_HEAD + b"0\r\na: " + b"x" * 70_000,
        b"HTTP/1.1 200 OK\r\na: " + b"x" * 70_000,
        b"HTTP/1.1 200 OK\r\na: " + b"x" * 70_000 + b"\r\n\r\n",
    ],
)
def test_framing_faults_raise_and_the_decoder_stays_failed(wire: bytes) -> None:
    decoder = ResponseDecoder()
    with pytest.raises(UpstreamProtocolError):
        decoder.feed(wire)
    with pytest.raises(UpstreamProtocolError):
        decoder.feed(b"more")


def test_what_was_decoded_before_a_fault_is_not_lost() -> None:
    decoder = ResponseDecoder()
    decoder.feed(CHUNKED_HEAD)
    with pytest.raises(UpstreamProtocolError) as caught:
        decoder.feed(b"3\r\nabc\r\nzz\r\n")
    assert caught.value.decoded == (Body(b"abc"),)
