"""Render: an event re-encoded for a client that asked for another shape."""

import json
from typing import Any

import pytest

from governor.core.outcomes import ReasoningField
from governor.core.render import dump, rename_reasoning, render_event


def rendered(event: dict[str, Any], wanted: ReasoningField, drop: tuple[str, ...] = ()) -> Any:
    out = render_event(json.dumps(event).encode(), wanted, drop)
    assert out.startswith(b"data: ")
    assert out.endswith(b"\n\n")
    assert out.count(b"\n") == 2
    return json.loads(out[6:])


@pytest.mark.parametrize("sent", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize(
    ("wanted", "members"),
    [
        (ReasoningField.REASONING, {"reasoning"}),
        (ReasoningField.REASONING_CONTENT, {"reasoning_content"}),
        (ReasoningField.BOTH, {"reasoning", "reasoning_content"}),
    ],
)
def test_reasoning_moves_to_the_wanted_members(
    sent: str, wanted: ReasoningField, members: set[str]
) -> None:
    event = {"id": "c", "choices": [{"index": 0, "delta": {sent: "a\nb", "role": "assistant"}}]}
    delta = rendered(event, wanted)["choices"][0]["delta"]
    assert delta == {"role": "assistant", **dict.fromkeys(members, "a\nb")}


def test_the_engines_own_field_is_left_as_it_is() -> None:
    delta = {"reasoning": "x", "reasoning_content": None}
    rename_reasoning(delta, ReasoningField.ENGINE)
    assert delta == {"reasoning": "x", "reasoning_content": None}


def test_a_delta_without_reasoning_gets_none() -> None:
    delta = {"content": "x"}
    rename_reasoning(delta, ReasoningField.BOTH)
    assert delta == {"content": "x"}


def test_members_are_dropped_at_both_levels_and_others_stay() -> None:
    event = {
        "id": "c",
        "usage": {"prompt_tokens": 1},
        "choices": [{"index": 0, "delta": {"content": "usage"}, "token_ids": [1]}],
    }
    assert rendered(event, ReasoningField.BOTH, ("usage", "token_ids")) == {
        "id": "c",
        "choices": [{"index": 0, "delta": {"content": "usage"}}],
    }


def test_json_is_compact_utf8_and_never_fails_on_half_a_character() -> None:
    assert dump({"a": "é ✓", "b": [1, 2]}) == '{"a":"é ✓","b":[1,2]}'.encode()
    assert dump({"a": "\ud83d é"}) == b'{"a":"\\ud83d \\u00e9"}'
