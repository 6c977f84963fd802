"""The rest of the OpenAI surface: models, tokenize, continued messages, tools, error bodies."""

import json
from typing import Any

import pytest

pytestmark = pytest.mark.slow
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    },
}


def test_models_version_and_info(live: Any) -> None:
    card = live.client.get("/v1/models").json()["data"][0]
    assert (card["id"], card["max_model_len"]) == ("tiny-reasoner", 4096)
    assert live.client.get("/version").json()["version"]
    info = live.client.get("/governor/v1/info").json()
    assert info["schema"] == "governor.info/1"
    assert (info["think_start_ids"], info["think_end_ids"]) == ([301], [302])
    assert (info["wrap_up_text"], info["wrap_up_ids"]) == ("\n</think>\n\n", [201, 302, 201, 201])
    # keys and values, 3 layers, 4 heads of 32, float32
    assert info["kv_bytes_per_token"] == 2 * 3 * 4 * 32 * 4
    assert (info["block_size"], info["num_blocks"], info["signal_interval"]) == (16, 1024, 8)
    assert {"land", "budget", "cut", "grace", "signals"} <= set(info["features"])


def test_tokenize_agrees_with_the_chat_route_and_back(live: Any) -> None:
    body = live.body("sum h8s2")
    tokens = live.post("/tokenize", body).json()
    chat = live.chat("sum h8s2", return_token_ids=True, max_tokens=1)
    assert tokens["tokens"] == chat["prompt_token_ids"]
    assert (tokens["count"], tokens["max_model_len"]) == (len(tokens["tokens"]), 4096)
    text = live.post("/detokenize", {"tokens": tokens["tokens"]}).json()["prompt"]
    assert text == "<|im_start|>user\nsum h8s2<|im_end|>\n<|im_start|>assistant\n<think>\n"
    bare = live.post("/tokenize", {**body, "add_generation_prompt": False}).json()
    assert tokens["tokens"][: bare["count"]] == bare["tokens"]
    assert live.post("/tokenize", {"prompt": "sum é"}).json()["count"] > 0


def continued(live: Any, message: dict[str, Any], **fields: Any) -> Any:
    messages = [{"role": "user", "content": "sum h8s2k9"}, {"role": "assistant", **message}]
    body = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    reply = live.post("/v1/chat/completions", {**body, **fields})
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["message"]


def test_a_partial_reasoning_is_continued(live: Any) -> None:
    message = continued(live, {"content": "", "reasoning": "h8=8\ns2=1"})
    assert (message["reasoning"], message["content"]) == ("0\nk9=19\nso 19\n", "\n\n19")


def test_a_partial_answer_is_continued(live: Any) -> None:
    message = continued(live, {"content": "\n\n1", "reasoning": "h8=8\ns2=10\nk9=19\nso 19\n"})
    assert (message["reasoning"], message["content"]) == (None, "9")


def test_content_alone_is_continued_behind_a_closed_block(live: Any) -> None:
    prompt = live.post(
        "/tokenize",
        {
            "messages": [*live.body("sum h8s2")["messages"], {"role": "assistant", "content": "1"}],
            "continue_final_message": True,
            "add_generation_prompt": False,
        },
    ).json()["tokens"]
    assert live.engine.vocabulary.decode(prompt).endswith("<think>\n</think>\n\n1")


def test_continuing_and_generating_exclude_each_other(live: Any) -> None:
    body = live.body("sum h8s2", continue_final_message=True, add_generation_prompt=True)
    assert live.post("/v1/chat/completions", body).status_code == 400


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_a_forced_tool_call_streams_the_models_answer(live: Any, choice: object) -> None:
    stream = live.stream("sum h8s2k9", tools=[TOOL], tool_choice=choice)
    calls = [c for x in stream.choices for c in x["delta"].get("tool_calls", ())]
    assert calls[0]["id"]
    assert calls[0]["function"]["name"] == "add"
    assert len(calls) > 1  # the arguments come in pieces
    arguments = "".join(c["function"]["arguments"] for c in calls)
    assert json.loads(arguments) == {"expression": "19"}
    assert stream.text("content") == ""
    assert stream.text("reasoning").endswith("so 19\n")
    assert stream.finish_reason == "tool_calls"
    whole = live.chat("sum h8s2k9", tools=[TOOL], tool_choice=choice)["choices"][0]
    assert whole["message"]["tool_calls"][0]["function"]["arguments"] == arguments
    assert (whole["message"]["content"], whole["finish_reason"]) == (None, "tool_calls")


def test_tools_without_a_call_leave_the_answer_alone(live: Any) -> None:
    stream = live.stream("sum h8s2k9", tools=[TOOL])
    assert (stream.text("content"), stream.finish_reason) == ("\n\n19", "stop")


def test_unknown_fields_are_ignored_and_effort_is_accepted(live: Any) -> None:
    assert live.chat("sum h8s2", reasoning_effort="low", extra_body={"a": 1}, user="u")


def test_an_unknown_model_is_a_404(live: Any) -> None:
    reply = live.post("/v1/chat/completions", live.body("sum h8s2", model="nobody"))
    assert reply.status_code == 404
    assert reply.json()["error"]["type"] == "NotFoundError"
    assert "nobody" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 5000}, "max_tokens"),
        ({"n": 9}, "n"),
        ({"stop": ""}, "stop"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "boss", "content": "x"}]}, "messages[0]"),
        ({"tools": [TOOL], "tool_choice": {"function": {"name": "other"}}}, "tool_choice"),
        ({"vllm_xargs": {"governor_grace_tokens": -1}}, "governor_grace_tokens"),
        ({"messages": [{"role": "user", "content": "sum " + "a1" * 3000}]}, "messages"),
    ],
)
def test_bad_values_are_400s_that_name_the_field(live: Any, change: Any, param: str) -> None:
    reply = live.post("/v1/chat/completions", {**live.body("sum h8s2"), **change})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("BadRequestError", param, 400)


def test_malformed_json_and_unknown_paths_have_error_bodies(live: Any) -> None:
    reply = live.client.post("/v1/chat/completions", content=b'{"messages": [')
    assert reply.status_code == 400
    assert "malformed JSON" in reply.json()["error"]["message"]
    assert live.client.get("/v1/nothing").json()["error"]["code"] == 404
    assert live.post("/v1/completions", {"prompt": [99999]}).status_code == 400


def test_the_official_client_works(live: Any) -> None:
    import openai

    with openai.OpenAI(base_url=live.url + "/v1", api_key="none", max_retries=0) as client:
        reply = client.chat.completions.create(
            model="tiny-reasoner", messages=[{"role": "user", "content": "sum h8s2k9"}]
        )
        assert (reply.choices[0].message.content or "").strip() == "19"
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="nobody", messages=[])
