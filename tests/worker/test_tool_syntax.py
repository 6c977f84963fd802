"""The Hermes parser and the forced call: whole, byte by byte, and split at every position."""

import json

import pytest

from governor_probes.embedded.tool_calls import (
    CallArguments,
    CallStart,
    ContentPiece,
    ForcedCall,
    HermesParser,
)

TEXT = (
    'First.\n<tool_call>\n{"name": "add", "arguments": {"a": "}{\\"", "b": [1, {"c": 2}]}}\n'
    '</tool_call>\n<tool_call>{"arguments": {"x": 1}, "name": "sub"}</tool_call>'
)


def parse(*pieces: str) -> tuple[str, list[tuple[str, str]]]:
    parser = HermesParser()
    events = [e for piece in pieces for e in parser.feed(piece)] + parser.finish()
    content = "".join(e.text for e in events if isinstance(e, ContentPiece))
    calls: list[tuple[str, str]] = []
    for event in events:
        if isinstance(event, CallStart):
            assert event.index == len(calls)
            calls.append((event.name, ""))
        elif isinstance(event, CallArguments):
            calls[event.index] = (calls[event.index][0], calls[event.index][1] + event.text)
    return content, calls


def check(content: str, calls: list[tuple[str, str]]) -> None:
    assert content == "First."
    assert [name for name, _ in calls] == ["add", "sub"]
    assert json.loads(calls[0][1]) == {"a": '}{"', "b": [1, {"c": 2}]}
    assert json.loads(calls[1][1]) == {"x": 1}


def test_whole() -> None:
    check(*parse(TEXT))


def test_character_by_character() -> None:
    check(*parse(*TEXT))


def test_split_at_every_position() -> None:
    for at in range(len(TEXT)):
        check(*parse(TEXT[:at], TEXT[at:]))


def test_arguments_stream_before_the_call_is_complete() -> None:
    parser = HermesParser()
    events = parser.feed('<tool_call>{"name": "f", "arguments": {"x": "12')
    assert events == [CallStart(0, "f"), CallArguments(0, '{"x": "12')]
    assert parser.feed('3"') == [CallArguments(0, '3"')]


@pytest.mark.parametrize(
    "text", ["a < b", "<tool", "<tool_call>{not json}</tool_call>", "<tool_call>{"]
)
def test_what_is_no_call_stays_text(text: str) -> None:
    assert parse(*text) == (text, [])


@pytest.mark.parametrize("answer", ["\n\n19", 'a "b"\n c', " x  y ", ""])
def test_a_forced_call_holds_the_answer(answer: str) -> None:
    call = ForcedCall("add")
    text = "".join(call.feed(c) for c in answer) + call.finish()
    content, calls = parse(*text)
    assert content == ""
    assert calls[0][0] == "add"
    assert json.loads(calls[0][1]) == {"expression": answer.strip()}
