"""Aggregator: a stream folded into the one body that a client without streaming expects."""

import json
from typing import Any

import pytest

from governor.core.aggregate import Aggregator
from governor.core.errors import UpstreamProtocolError
from governor.core.outcomes import ReasoningField

HEAD = {"id": "c1", "object": "chat.completion.chunk", "created": 7, "model": "m"}


def chunk(delta: dict[str, Any] | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    inside = {k: more.pop(k) for k in tuple(more) if k in ("logprobs", "token_ids", "stop_reason")}
    choice = {"index": index, "finish_reason": more.pop("finish", None), **inside}
    if "text" in more:
        choice["text"] = more.pop("text")
    else:
        choice["delta"] = delta or {}
    return {**HEAD, "choices": [choice], **more}


def folded(
    *events: dict[str, Any],
    endpoint: str = "chat",
    wanted: ReasoningField = ReasoningField.ENGINE,
    drop: tuple[str, ...] = (),
    block: dict[str, Any] | None = None,
) -> dict[str, Any]:
    aggregate = Aggregator(endpoint, wanted, drop)
    for event in events:
        aggregate.add(json.dumps(event).encode())
    found = json.loads(aggregate.body(block))
    assert isinstance(found, dict)
    return found


def test_text_reasoning_and_the_end_come_together() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
    body = folded(
        chunk({"role": "assistant", "content": ""}),
        chunk({"reasoning": "so "}),
        chunk({"reasoning": "then"}),
        chunk({"content": "4"}),
        chunk({"content": "2 ✓"}),
        chunk(finish="stop", stop_reason=None),
        {**HEAD, "choices": [], "usage": usage},
    )
    assert body["object"] == "chat.completion"
    assert (body["id"], body["created"], body["model"]) == ("c1", 7, "m")
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "42 ✓", "reasoning": "so then"}
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] is None
    assert body["usage"] == usage


@pytest.mark.parametrize(
    ("wanted", "members"),
    [
        (ReasoningField.ENGINE, {"reasoning_content"}),
        (ReasoningField.REASONING, {"reasoning"}),
        (ReasoningField.BOTH, {"reasoning", "reasoning_content"}),
    ],
)
def test_reasoning_is_named_as_the_policy_says(wanted: ReasoningField, members: set[str]) -> None:
    body = folded(chunk({"reasoning_content": "x"}), chunk({"content": "y"}), wanted=wanted)
    message = body["choices"][0]["message"]
    assert {name for name in message if name.startswith("reasoning")} == members


def test_tool_calls_are_put_together_by_their_index() -> None:
    def call(index: int, **more: Any) -> dict[str, Any]:
        return chunk({"tool_calls": [{"index": index, **more}]})

    body = folded(
        call(0, id="a", type="function", function={"name": "add", "arguments": ""}),
        call(1, id="b", type="function", function={"name": "sub", "arguments": '{"y"'}),
        call(0, function={"arguments": '{"x":'}),
        call(0, function={"arguments": "1}"}),
        call(1, function={"arguments": ":2}"}),
        chunk(finish="tool_calls"),
    )
    message = body["choices"][0]["message"]
    assert message["content"] is None
    assert [c["id"] for c in message["tool_calls"]] == ["a", "b"]
    assert [c["function"] for c in message["tool_calls"]] == [
        {"arguments": '{"x":1}', "name": "add"},
        {"arguments": '{"y":2}', "name": "sub"},
    ]


def test_logprobs_of_chat_and_completions_are_joined() -> None:
    body = folded(
        chunk({"content": "a"}, logprobs={"content": [{"token": "a"}], "refusal": None}),
        chunk({"content": "b"}, logprobs={"content": [{"token": "b"}], "refusal": None}),
        chunk(finish="stop", logprobs=None),
    )
    joined = body["choices"][0]["logprobs"]
    assert joined == {"content": [{"token": "a"}, {"token": "b"}], "refusal": None}
    body = folded(
        chunk(text="a", logprobs={"tokens": ["a"], "text_offset": [0]}),
        chunk(text="b", logprobs={"tokens": ["b"], "text_offset": [1]}),
        endpoint="completions",
    )
    assert body["object"] == "text_completion"
    assert body["choices"][0]["text"] == "ab"
    assert body["choices"][0]["logprobs"] == {"tokens": ["a", "b"], "text_offset": [0, 1]}


def test_choices_stay_apart_and_in_order() -> None:
    body = folded(chunk({"content": "b"}, index=1), chunk({"content": "a"}), chunk(finish="stop"))
    assert [c["index"] for c in body["choices"]] == [0, 1]
    assert [c["message"]["content"] for c in body["choices"]] == ["a", "b"]


def test_what_only_the_gateway_asked_for_is_left_out() -> None:
    events = (chunk({"content": "a"}, token_ids=[1, 2], prompt_token_ids=[9]),)
    asked = folded(*events)
    assert asked["prompt_token_ids"] == [9]
    assert asked["choices"][0]["token_ids"] == [1, 2]
    hidden = folded(*events, drop=("token_ids", "prompt_token_ids", "usage"))
    assert "token_ids" not in json.dumps(hidden)
    assert "usage" not in hidden


def test_the_block_is_added_only_where_one_is_given() -> None:
    assert folded(chunk({"content": "a"}), block={"landed": "loop"})["governor"] == {
        "landed": "loop"
    }
    assert "governor" not in folded(chunk({"content": "a"}))


def test_an_error_of_the_worker_is_kept_apart() -> None:
    aggregate = Aggregator("chat", ReasoningField.ENGINE, ())
    aggregate.add(b'{"error": {"message": "boom"}}')
    assert aggregate.error == {"message": "boom"}


@pytest.mark.parametrize(
    "data", [b"{", b"[]", b"3", b'{"choices": [3]}', b"[" * 100_000, b'{"choices": 5}']
)
def test_a_broken_event_is_a_typed_error_and_never_a_silent_hole(data: bytes) -> None:
    with pytest.raises(UpstreamProtocolError):
        Aggregator("chat", ReasoningField.ENGINE, ()).add(data)


def test_halves_of_a_character_in_two_events_still_make_a_body() -> None:
    aggregate = Aggregator("chat", ReasoningField.ENGINE, ())
    for half in (r"\ud83d", r"\ude00"):
        aggregate.add(b'{"choices":[{"index":0,"delta":{"content":"%s"}}]}' % half.encode())
    content = json.loads(aggregate.body(None))["choices"][0]["message"]["content"]
    assert content == "😀"
