"""Both chunk decoders accept, give and refuse the same."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.adapters.chunk_msgspec import decode_chunk as decode_with_msgspec
from governor.core.chunks import Chunk, ChunkChoice, Delta, decode_chunk
from governor.core.errors import UpstreamProtocolError
from governor.core.sse import SseDecoder

Decode = Callable[[bytes], Chunk]

DATA = Path(__file__).parent.parent / "data"
DECODERS: list[Decode] = [decode_chunk, decode_with_msgspec]
both = pytest.mark.parametrize("decode", DECODERS, ids=["standard", "msgspec"])


def recorded(name: str) -> list[bytes]:
    events = SseDecoder().feed((DATA / name).read_bytes())
    return [event.data for event in events if event.data not in (None, b"[DONE]")]


RECORDED = recorded("vllm_chat_logprobs.sse") + recorded("vllm_reasoning_parser.sse")

SGLANG = (
    b'{"id":"7f","object":"chat.completion.chunk","created":1796081558,"model":"qwen",'
    b'"choices":[{"index":0,"delta":{"role":null,"content":null,"reasoning_content":"Okay",'
    b'"tool_calls":null},"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":'
    b'{"prompt_tokens":9,"total_tokens":11,"completion_tokens":2,"prompt_tokens_details":null,'
    b'"reasoning_tokens":1}}'
)
LLAMA_CPP = (
    b'{"choices": [{"finish_reason": "stop", "index": 0, "delta": {}}], "created": 1796081558, '
    b'"id": "chatcmpl-x", "model": "gguf", "system_fingerprint": "b1-1", "object": '
    b'"chat.completion.chunk", "usage": {"completion_tokens": 3, "prompt_tokens": 4, '
    b'"total_tokens": 7}, "timings": {"prompt_n": 1, "predicted_per_second": 92.5}}'
)
DEEPSEEK = (
    b'{"id":"d","object":"chat.completion.chunk","created":1796081558,"model":"deepseek-reasoner",'
    b'"system_fingerprint":"fp","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":30,'
    b'"total_tokens":35,"prompt_tokens_details":{"cached_tokens":4},"completion_tokens_details":'
    b'{"reasoning_tokens":20},"prompt_cache_hit_tokens":4,"prompt_cache_miss_tokens":1}}'
)
COMPLETION = (
    b'{"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,'
    b'"text":" x","logprobs":null,"finish_reason":"stop","stop_reason":128001,'
    b'"token_ids":[5,6],"prompt_token_ids":[1,2,3]}],"usage":null}'
)


@pytest.mark.parametrize("data", [*RECORDED, SGLANG, LLAMA_CPP, DEEPSEEK, COMPLETION])
def test_both_give_the_same_for_what_workers_send(data: bytes) -> None:
    assert decode_chunk(data) == decode_with_msgspec(data)


@both
def test_recorded_vllm_stream(decode: Decode) -> None:
    chunks = [decode(data) for data in recorded("vllm_chat_logprobs.sse")]
    assert chunks[0].prompt_token_ids is not None
    assert len(chunks[0].prompt_token_ids) == 32
    ids = [i for chunk in chunks for choice in chunk.choices for i in choice.token_ids or ()]
    assert ids == [61, 8012, 17, 1073, 416, 339]
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 6
    assert chunks[-1].usage.reasoning_tokens is None
    assert chunks[-1].usage.cached_tokens == 0


@both
def test_recorded_vllm_stream_with_a_reasoning_parser(decode: Decode) -> None:
    chunks = [decode(data) for data in recorded("vllm_reasoning_parser.sse")]
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert "".join(delta.reasoning or "" for delta in deltas if delta)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.reasoning_tokens == 0


@both
def test_dialects(decode: Decode) -> None:
    sglang = decode(SGLANG)
    assert sglang.choices[0].delta == Delta(reasoning_content="Okay")
    assert sglang.usage is not None
    assert sglang.usage.reasoning_tokens == 1
    assert decode(LLAMA_CPP).choices == [ChunkChoice(delta=Delta(), finish_reason="stop")]
    deepseek = decode(DEEPSEEK).usage
    assert deepseek is not None
    assert (deepseek.reasoning_tokens, deepseek.cached_tokens) == (20, 4)
    completion = decode(COMPLETION).choices[0]
    assert (completion.text, completion.token_ids, completion.stop_reason) == (" x", [5, 6], 128001)
    assert completion.prompt_token_ids == [1, 2, 3]


@both
def test_a_missing_count_is_unknown_and_a_zero_is_zero(decode: Decode) -> None:
    usage = decode(b'{"usage":{"prompt_tokens":0,"prompt_tokens_details":{}}}').usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (0, None)
    assert (usage.reasoning_tokens, usage.cached_tokens) == (None, None)


@both
def test_nulls_missing_unknown_and_lenient_members(decode: Decode) -> None:
    assert decode(b"{}") == Chunk()
    assert decode(b' {"choices":null,"usage":null,"model":null,"x":{"y":[1]}} \n') == Chunk()
    assert decode(b'{"created":1.5,"choices":[{"index":null,"delta":null}]}') == Chunk(
        created=1.5, choices=[ChunkChoice()]
    )
    usage = decode(b'{"usage":{"completion_tokens":3.0}}').usage
    assert usage is not None
    assert usage.completion_tokens == 3


@both
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"error":{"message":"boom","code":500}}', "boom"),
        (b'{"error":"boom"}', "boom"),
        (b'{"object":"error","message":"boom","type":"BadRequestError","code":400}', "boom"),
    ],
)
def test_every_form_of_a_failure_inside_a_stream(decode: Decode, data: bytes, message: str) -> None:
    error = decode(data).error
    assert error is not None
    assert error["message"] == message


@both
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[DONE]",
        b"[]",
        b"null",
        b'{"id":"a"',
        b'{"id":"a"} x',
        b'{"id":1}',
        b'{"choices":{}}',
        b'{"choices":[1]}',
        b'{"choices":[{"index":"0"}]}',
        b'{"choices":[{"delta":"x"}]}',
        b'{"choices":[{"delta":{"content":["x"]}}]}',
        b'{"choices":[{"token_ids":[1,"2"]}]}',
        b'{"choices":[{"token_ids":[1.5]}]}',
        b'{"usage":{"completion_tokens":true}}',
        b'{"usage":{"completion_tokens":"3"}}',
        b'{"usage":3}',
        b'{"error":7}',
        b'{"created":NaN}',
        b'{"choices":[{"delta":{"content":"\xff"}}]}',
        b'{"choices":[{"delta":{"content":"\\ud800"}}]}',
        b"\xef\xbb\xbf{}",
        b'{"choices":[{"logprobs":' + b"[" * 200_000 + b"]" * 200_000 + b"}]}",
    ],
)
def test_what_is_malformed_is_a_typed_error(decode: Decode, data: bytes) -> None:
    with pytest.raises(UpstreamProtocolError):
        decode(data)


values = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=8)
MEMBERS = """
id object created model choices usage error index delta text finish_reason stop_reason token_ids
role content reasoning tool_calls prompt_tokens completion_tokens code other
"""
members = st.sampled_from(MEMBERS.split())
payloads = st.recursive(
    values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(members, inner, max_size=5),
    max_leaves=20,
)


@given(st.dictionaries(members, payloads, max_size=6))
def test_both_agree_on_arbitrary_objects(payload: dict[str, Any]) -> None:
    data = json.dumps(payload).encode()
    results: list[Chunk | type[Exception]] = []
    for decode in DECODERS:
        try:
            results.append(decode(data))
        except UpstreamProtocolError as error:
            results.append(type(error))
    assert results[0] == results[1]
