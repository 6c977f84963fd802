"""The chat stream: its layout, its token accounting, and what never shares a delta."""

import json
from typing import Any

import pytest

pytestmark = pytest.mark.slow
END = 302


def test_chunks_come_in_the_order_role_deltas_finish_usage_done(live: Any) -> None:
    stream = live.stream("sum h8s2k9")
    assert stream.done
    first, *rest = stream.chunks
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["prompt_token_ids"][-2:] == [301, 201]
    assert rest[-1]["choices"] == []
    assert rest[-2]["choices"][0]["finish_reason"] == "stop"
    assert all(c["choices"][0]["finish_reason"] is None for c in rest[:-2])
    assert {c["id"] for c in stream.chunks} == {first["id"]}
    assert stream.text("reasoning") == "h8=8\ns2=10\nk9=19\nso 19\n"
    assert stream.text("content") == "\n\n19"


def test_every_token_is_counted_once_at_any_packing(live_by_interval: Any) -> None:
    live = live_by_interval
    stream = live.stream("sum h8s2k9", stream_options={
        "include_usage": True, "continuous_usage_stats": True})  # fmt: skip
    interval = live.settings.stream_interval
    assert stream.usage["completion_tokens"] == len(stream.token_ids) == 28
    assert stream.usage["completion_tokens_details"]["reasoning_tokens"] == 22
    assert stream.token_ids.index(END) == 22
    assert stream.token_ids[-1] == 2
    assert live.engine.vocabulary.decode(stream.token_ids[:22]) == stream.text("reasoning")
    seen = 0
    for chunk in stream.chunks[1:-1]:
        (choice,) = chunk["choices"]
        seen += len(choice["token_ids"])
        assert 1 <= len(choice["token_ids"]) <= interval
        assert chunk["usage"]["completion_tokens"] == seen
        assert not {"reasoning", "content"} <= set(choice["delta"])
    assert len(stream.chunks[1]["choices"][0]["token_ids"]) == 1  # the first token is sent at once


def test_stream_and_whole_reply_agree(live: Any) -> None:
    stream = live.stream("sum u4i1z9b7c3d2")
    whole = live.chat("sum u4i1z9b7c3d2", return_token_ids=True)
    choice = whole["choices"][0]
    assert choice["message"]["reasoning"] == stream.text("reasoning")
    assert choice["message"]["content"] == stream.text("content")
    assert choice["token_ids"] == stream.token_ids
    assert whole["usage"]["completion_tokens"] == stream.usage["completion_tokens"]
    assert whole["prompt_token_ids"] == stream.chunks[0]["prompt_token_ids"]


def test_logprobs_come_with_reasoning_chunks_too(live: Any) -> None:
    stream = live.stream("sum h8s2", logprobs=True, top_logprobs=3, max_tokens=8)
    entries = [e for c in stream.choices[1:] for e in c["logprobs"]["content"]]
    assert len(entries) == 8
    assert "reasoning" in stream.choices[1]["delta"]
    for entry in entries:
        assert len(entry["top_logprobs"]) == 3
        assert entry["top_logprobs"][0]["logprob"] == entry["logprob"]  # greedy
        assert bytes(entry["bytes"]).decode() == entry["token"]


def test_request_id_is_the_response_id(live: Any) -> None:
    assert live.chat("sum h8s2", request_id="abc-1")["id"] == "chatcmpl-abc-1"


def test_max_tokens_ends_with_length(live: Any) -> None:
    stream = live.stream("sum h8s2k9", max_completion_tokens=5)
    assert stream.finish_reason == "length"
    assert stream.usage["completion_tokens"] == 5
    assert stream.text("content") == ""


def test_n_choices_are_separate_and_summed(live: Any) -> None:
    stream = live.stream("sum h8s2k9", n=3, temperature=1.0, seed=5)
    per_choice = dict.fromkeys(range(3), 0)
    for choice in stream.choices:
        per_choice[choice["index"]] += len(choice.get("token_ids") or ())
    assert min(per_choice.values()) > 0
    assert stream.usage["completion_tokens"] == sum(per_choice.values())
    assert sum(1 for c in stream.choices if c["finish_reason"]) == 3


def test_completions_take_text_and_token_ids(live: Any) -> None:
    text = "<|im_start|>user\nsum h8s2<|im_end|>\n<|im_start|>assistant\n<think>\n"
    ids = live.post("/tokenize", {"prompt": text}).json()["tokens"]
    body = {"max_tokens": 40, "return_token_ids": True}
    by_text = live.post("/v1/completions", {"prompt": text, **body}).json()
    by_ids = live.post("/v1/completions", {"prompt": ids, **body}).json()
    assert by_text["choices"] == by_ids["choices"]
    assert by_text["choices"][0]["text"] == "h8=8\ns2=10\nso 10\n</think>\n\n10"
    assert by_ids["choices"][0]["prompt_token_ids"] == ids
    stream = live.read("/v1/completions", {"prompt": ids, **body})
    assert "".join(c["text"] for c in stream.choices) == by_text["choices"][0]["text"]
    assert stream.token_ids == by_text["choices"][0]["token_ids"]


def test_chunks_are_plain_sse(live: Any) -> None:
    with live.lines("/v1/chat/completions", live.body("sum h8s2", max_tokens=2)) as lines:
        assert [json.loads(x)["object"] if x != "[DONE]" else x for x in lines] == [
            "chat.completion.chunk",
            "chat.completion.chunk",
            "chat.completion.chunk",
            "[DONE]",
        ]
