"""The official `openai` client against the gateway, unchanged: what works, and what is an error."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from tests.running_stack import Gateway

pytestmark = pytest.mark.slow

MODEL = "tiny-reasoner"
MESSAGES: Any = [{"role": "user", "content": "sum h8s2k9"}]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    },
}


def tokens_in(gateway: Gateway, text: str) -> int:
    """Length of a text in the worker's own tokens."""
    return int(gateway.http.post("/tokenize", json={"prompt": text}).json()["count"])


def test_an_answer_with_its_usage(client: openai.OpenAI, gateway: Gateway) -> None:
    reply = client.chat.completions.create(model=MODEL, messages=MESSAGES)
    message = reply.choices[0].message
    assert (message.content or "").strip() == "19"
    thinking: str = message.reasoning  # type: ignore[attr-defined]
    assert thinking == "h8=8\ns2=10\nk9=19\nso 19\n"
    assert (reply.choices[0].finish_reason, reply.object) == ("stop", "chat.completion")
    usage = reply.usage
    assert usage is not None
    assert usage.completion_tokens_details is not None
    reasoning_tokens = usage.completion_tokens_details.reasoning_tokens
    assert reasoning_tokens == tokens_in(gateway, thinking)
    assert usage.completion_tokens > reasoning_tokens
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_a_stream_with_reasoning_and_content_and_usage_last(
    client: openai.OpenAI, gateway: Gateway
) -> None:
    options: Any = {"include_usage": True}
    stream = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, stream_options=options
    )
    chunks = list(stream)
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    thinking = "".join(getattr(delta, "reasoning", None) or "" for delta in deltas)
    content = "".join(delta.content or "" for delta in deltas)
    assert (thinking, content.strip()) == ("h8=8\ns2=10\nk9=19\nso 19\n", "19")
    assert deltas[0].role == "assistant"
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    usage = chunks[-1].usage
    assert usage is not None
    assert chunks[-1].choices == []
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.reasoning_tokens == tokens_in(gateway, thinking)
    assert all(chunk.usage is None for chunk in chunks[:-1])


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_tools_streamed_and_whole(client: openai.OpenAI, choice: Any) -> None:
    asked: Any = {"model": MODEL, "messages": MESSAGES, "tools": [TOOL], "tool_choice": choice}
    whole = client.chat.completions.create(**asked).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert whole.message.tool_calls is not None
    call = whole.message.tool_calls[0]
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == (
        "add",
        {"expression": "19"},
    )
    pieces = [
        piece
        for chunk in client.chat.completions.create(**asked, stream=True)
        for piece in (chunk.choices[0].delta.tool_calls or () if chunk.choices else ())
    ]
    assert pieces[0].id
    assert pieces[0].function is not None
    assert pieces[0].function.name == "add"
    arguments = "".join(p.function.arguments or "" for p in pieces if p.function)
    assert arguments == call.function.arguments


def test_tools_that_the_model_does_not_call_change_nothing(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=[TOOL])
    assert (reply.choices[0].message.content or "").strip() == "19"
    assert reply.choices[0].finish_reason == "stop"


def test_logprobs_whole_and_streamed(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "messages": MESSAGES, "logprobs": True, "top_logprobs": 2}
    logprobs = client.chat.completions.create(**asked).choices[0].logprobs
    assert logprobs is not None
    entries = logprobs.content or []
    assert len(entries) > 20
    assert all(entry.logprob <= 0 and len(entry.top_logprobs) == 2 for entry in entries)
    streamed = [
        entry
        for chunk in client.chat.completions.create(**asked, stream=True)
        for choice in chunk.choices
        for entry in (choice.logprobs.content or () if choice.logprobs else ())
    ]
    assert [entry.token for entry in streamed] == [entry.token for entry in entries]


def test_completions_whole_and_streamed(client: openai.OpenAI) -> None:
    prompt = "<|im_start|>user\nsum h8s2<|im_end|>\n<|im_start|>assistant\n<think>\n"
    asked: Any = {"model": MODEL, "prompt": prompt, "max_tokens": 40}
    text = client.completions.create(**asked).choices[0].text
    assert "h8=8\ns2=10\nso 10" in text
    assert text.rstrip().endswith("10")
    pieces = client.completions.create(**asked, stream=True)
    assert "".join(chunk.choices[0].text for chunk in pieces if chunk.choices) == text


def test_models_are_those_of_all_workers(client: openai.OpenAI) -> None:
    assert {card.id for card in client.models.list()} == {
        "tiny-reasoner",
        "tiny-reasoner-by3",
        "tiny-reasoner-by20",
        "somebodys-model",
    }
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody")


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="nobody") as caught:
        client.chat.completions.create(model="nobody", messages=MESSAGES)
    assert caught.value.param == "model"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"messages": []}, "messages"),
        ({"n": 0}, "n"),
        ({"extra_body": {"thinking_token_budget": "many"}}, "thinking_token_budget"),
        ({"extra_body": {"thinking": {"budget_tokens": -4}}}, "thinking.budget_tokens"),
        ({"extra_body": {"governor": {"deadline_s": "soon"}}}, "governor.deadline_s"),
        ({"stream": False, "stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
def test_bad_values_are_bad_requests_that_name_the_field(
    client: openai.OpenAI, change: Any, param: str
) -> None:
    asked: Any = {"model": MODEL, "messages": MESSAGES, **change}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**asked)
    assert caught.value.param == param


def test_a_wrong_key_is_an_authentication_error(gateway: Gateway) -> None:
    with (
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="gk-wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.chat.completions.create(model=MODEL, messages=MESSAGES)
    with (
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="gk-wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()


def test_a_model_that_the_tenant_may_not_use_is_forbidden(
    gateway: Gateway, as_tenant: Callable[[str], dict[str, str]]
) -> None:
    key = as_tenant("keyed")["authorization"].removeprefix("Bearer ")
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0) as client:
        assert client.chat.completions.create(model=MODEL, messages=MESSAGES).choices
        with pytest.raises(openai.PermissionDeniedError):
            client.chat.completions.create(model="somebodys-model", messages=MESSAGES)


@pytest.mark.parametrize("body", [b'{"messages": [', b"[]", b"\xff\xfe", b""])
def test_a_body_that_is_no_json_object_is_a_400(gateway: Gateway, body: bytes) -> None:
    reply = gateway.http.post("/v1/chat/completions", content=body)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["message"]
    assert set(error) == {"message", "type", "param", "code"}
    assert reply.headers["x-governor-decision"]


def test_an_oversized_body_is_a_413_and_the_connection_closes(gateway: Gateway) -> None:
    # Ended before the whole body is read: the client may still be writing when the answer comes.
    body = b'{"model": "' + b"x" * (17 * 1024 * 1024) + b'"}'
    with httpx.Client(base_url=gateway.url, trust_env=False, timeout=20) as client:
        reply = client.post("/v1/chat/completions", content=body)
    assert reply.status_code == 413
    assert reply.json()["error"]["code"] == "body_too_large"
    assert gateway.chat("sum h8s2").content == "10"
