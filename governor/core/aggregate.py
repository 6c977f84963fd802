"""Aggregate: fold a chat or completions stream into the one JSON body that a non-streaming client
expects."""

import json
from dataclasses import dataclass, field
from typing import Any

from governor.core.errors import UpstreamProtocolError
from governor.core.outcomes import ReasoningField
from governor.core.render import dump, rename_reasoning

_KEPT = ("system_fingerprint", "service_tier", "prompt_logprobs", "kv_transfer_params")


@dataclass(slots=True)
class _Choice:
    role: str = "assistant"
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    reasoning_member: str = "reasoning"
    refusal: str | None = None
    tool_calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    logprobs: dict[str, Any] | None = None
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: Any = None
    saw_stop_reason: bool = False
    saw_content: bool = False


class Aggregator:
    """Collects stream events in order; `body` gives the response. Members in `drop` are left
    out."""

    def __init__(self, endpoint: str, wanted: ReasoningField, drop: tuple[str, ...]) -> None:
        self._chat = endpoint == "chat"
        self._wanted = wanted
        self._drop = drop
        self._head: dict[str, Any] = {}
        self._choices: dict[int, _Choice] = {}
        self._usage: dict[str, Any] | None = None
        self.error: dict[str, Any] | None = None

    def add(self, data: bytes) -> None:
        """Fold in one event's JSON. Raises UpstreamProtocolError for what is no event: the body
        would lack a part, and nobody could tell."""
        try:
            self._add(json.loads(data))
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
            raise UpstreamProtocolError(f"a broken event in the stream: {error!r:.80}") from error

    def _add(self, event: dict[str, Any]) -> None:
        if event.get("error") is not None:
            self.error = event["error"]
            return
        for name in ("id", "created", "model", *_KEPT):
            if event.get(name) is not None:
                self._head.setdefault(name, event[name])
        if event.get("prompt_token_ids") is not None:
            self._head.setdefault("prompt_token_ids", event["prompt_token_ids"])
        if event.get("usage") is not None:
            self._usage = event["usage"]
        for choice in event.get("choices") or ():
            self._add_choice(choice)

    def _add_choice(self, event: dict[str, Any]) -> None:
        choice = self._choices.setdefault(event.get("index", 0), _Choice())
        delta = event.get("delta") or {}
        choice.role = delta.get("role") or choice.role
        for text in (delta.get("content"), event.get("text")):
            if text is not None:
                choice.content.append(text)
                choice.saw_content = choice.saw_content or bool(text)
        for member in ("reasoning", "reasoning_content"):
            if delta.get(member):
                choice.reasoning.append(delta[member])
                choice.reasoning_member = member
                break
        if delta.get("refusal") is not None:
            choice.refusal = (choice.refusal or "") + delta["refusal"]
        for call in delta.get("tool_calls") or ():
            self._add_tool_call(choice, call)
        choice.logprobs = _joined_logprobs(choice.logprobs, event.get("logprobs"))
        choice.token_ids.extend(event.get("token_ids") or ())
        if event.get("finish_reason") is not None:
            choice.finish_reason = event["finish_reason"]
        if "stop_reason" in event:
            choice.saw_stop_reason, choice.stop_reason = True, event["stop_reason"]

    @staticmethod
    def _add_tool_call(choice: _Choice, call: dict[str, Any]) -> None:
        whole = choice.tool_calls.setdefault(
            call.get("index", 0), {"id": None, "type": "function", "function": {"arguments": ""}}
        )
        whole["id"] = call.get("id") or whole["id"]
        function = call.get("function") or {}
        if function.get("name"):
            whole["function"]["name"] = function["name"]
        whole["function"]["arguments"] += function.get("arguments") or ""

    def answer(self) -> tuple[int, int]:
        """(characters of answer text, tool calls) of the first choice."""
        choice = self._choices.get(0, _Choice())
        return sum(map(len, choice.content)), len(choice.tool_calls)

    def body(self, governor: dict[str, Any] | None) -> bytes:
        """The response body, with a `governor` block when one is given."""
        kind = "chat.completion" if self._chat else "text_completion"
        whole: dict[str, Any] = {"object": kind, **self._head}
        whole["choices"] = [self._choice(i, self._choices[i]) for i in sorted(self._choices)]
        whole["usage"] = self._usage
        if governor is not None:
            whole["governor"] = governor
        for name in self._drop:
            whole.pop(name, None)
        return dump(whole)

    def _choice(self, index: int, choice: _Choice) -> dict[str, Any]:
        text = "".join(choice.content)
        out: dict[str, Any] = {"index": index}
        if self._chat:
            calls = [choice.tool_calls[i] for i in sorted(choice.tool_calls)]
            content = text if choice.saw_content or not calls else None
            message: dict[str, Any] = {"role": choice.role, "content": content}
            if choice.refusal is not None:
                message["refusal"] = choice.refusal
            if choice.reasoning:
                message[choice.reasoning_member] = "".join(choice.reasoning)
                rename_reasoning(message, self._wanted)
            if calls:
                message["tool_calls"] = calls
            out["message"] = message
        else:
            out["text"] = text
        out["logprobs"] = choice.logprobs
        out["finish_reason"] = choice.finish_reason
        if choice.saw_stop_reason:
            out["stop_reason"] = choice.stop_reason
        if choice.token_ids and "token_ids" not in self._drop:
            out["token_ids"] = choice.token_ids
        return out


def _joined_logprobs(
    so_far: dict[str, Any] | None, more: dict[str, Any] | None
) -> dict[str, Any] | None:
    """Chat logprobs hold lists in `content`/`refusal`; completions hold parallel lists."""
    if more is None:
        return so_far
    if so_far is None:
        return {k: list(v) if isinstance(v, list) else v for k, v in more.items()}
    for name, value in more.items():
        if isinstance(value, list) and isinstance(so_far.get(name), list):
            so_far[name].extend(value)
        elif so_far.get(name) is None:
            so_far[name] = value
    return so_far
