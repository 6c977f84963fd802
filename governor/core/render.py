"""Render: rewrite a stream event for a client that asked for another shape than the worker's."""

import json
from typing import Any

from governor.core.outcomes import ReasoningField

REASONING_MEMBERS = ("reasoning", "reasoning_content")


def rename_reasoning(delta: dict[str, Any], wanted: ReasoningField) -> None:
    """Move reasoning text of a delta or message to the member(s) that the policy names, in
    place."""
    if wanted is ReasoningField.ENGINE:
        return
    present = [name for name in REASONING_MEMBERS if delta.get(name) is not None]
    if not present:
        return
    text = delta[present[0]]
    for name in REASONING_MEMBERS:
        delta.pop(name, None)
    if wanted in (ReasoningField.REASONING, ReasoningField.BOTH):
        delta["reasoning"] = text
    if wanted in (ReasoningField.REASONING_CONTENT, ReasoningField.BOTH):
        delta["reasoning_content"] = text


def render_event(data: bytes, wanted: ReasoningField, drop: tuple[str, ...]) -> bytes:
    """One SSE event re-encoded: reasoning renamed, members in `drop` removed at both levels."""
    event = json.loads(data)
    for name in drop:
        event.pop(name, None)
    for choice in event.get("choices") or ():
        for name in drop:
            choice.pop(name, None)
        if choice.get("delta"):
            rename_reasoning(choice["delta"], wanted)
    return b"data: " + dump(event) + b"\n\n"


def dump(value: Any) -> bytes:
    """Compact JSON in UTF-8. Half of a surrogate pair, which UTF-8 cannot hold, stays escaped."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()
