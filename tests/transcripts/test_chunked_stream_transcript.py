"""A recorded worker's stream through framing, SSE and the chunk decoder, however it is cut."""

from pathlib import Path

import pytest

from governor.core.chunks import Chunk, decode_chunk
from governor.core.framing import Body, End, ResponseDecoder
from governor.core.sse import SseDecoder

DATA = Path(__file__).parent.parent / "data"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def wire_of(name: str, limit: int | None = None) -> bytes:
    stream = (DATA / name).read_bytes()
    events = [event.raw for event in SseDecoder().feed(stream)]
    if limit is not None:
        events = [*events[:1], *events[-limit:]]
    return HEAD + b"".join(b"%x\r\n%s\r\n" % (len(raw), raw) for raw in events) + b"0\r\n\r\n"


def read(parts: list[bytes]) -> tuple[list[Chunk | str], bool]:
    framing, sse = ResponseDecoder(), SseDecoder()
    seen: list[Chunk | str] = []
    ended = False
    for part in parts:
        for item in framing.feed(part):
            if isinstance(item, Body):
                for event in sse.feed(item.data):
                    assert event.data is not None
                    done = event.data == b"[DONE]"
                    seen.append("done" if done else decode_chunk(event.data))
            elif isinstance(item, End):
                ended = True
    assert sse.pending == b""
    return seen, ended


@pytest.mark.parametrize("name", ["vllm_chat_logprobs.sse", "vllm_reasoning_parser.sse"])
@pytest.mark.parametrize("step", [1, 2, 3, 7, 20, 241, 1460])
def test_reads_of_any_size_give_the_same_chunks(name: str, step: int) -> None:
    wire = wire_of(name)
    whole = read([wire])
    assert whole[0][-1] == "done"
    assert whole[1]
    assert read([wire[i : i + step] for i in range(0, len(wire), step)]) == whole


def test_a_cut_at_every_position_gives_the_same_chunks() -> None:
    wire = wire_of("vllm_reasoning_parser.sse", limit=2)
    whole = read([wire])
    for cut in range(len(wire) + 1):
        assert read([wire[:cut], wire[cut:]]) == whole
