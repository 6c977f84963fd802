"""Shapes one chat choice: reasoning, content and tool calls, as stream deltas or as a message."""

import uuid
from collections.abc import Iterator
from typing import Any

from governor_probes.embedded.output_shape import TokenTally, chat_logprobs
from governor_probes.embedded.request import OutputBatch, OutputItem
from governor_probes.embedded.tool_calls import (
    CallArguments,
    CallStart,
    ContentPiece,
    ForcedCall,
    HermesParser,
    ToolEvent,
)
from governor_probes.embedded.vocabulary import Vocabulary
from governor_probes.landing_state import Channel


class ChatChoice:
    """One choice on its way out. A delta never holds reasoning and content together."""

    def __init__(
        self,
        index: int,
        vocabulary: Vocabulary,
        *,
        token_ids: bool,
        parse_tools: bool = False,
        forced_tool: str | None = None,
    ) -> None:
        self._index = index
        self._vocabulary = vocabulary
        self._token_ids = token_ids
        self._parser = HermesParser() if parse_tools or forced_tool is not None else None
        self._forced = ForcedCall(forced_tool) if forced_tool is not None else None
        self._answered = False
        self.tally = TokenTally()

    def first(self) -> dict[str, Any]:
        """The opening choice: the role with an empty content."""
        delta = {"role": "assistant", "content": ""}
        return {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": None}

    def choices(self, batch: OutputBatch) -> Iterator[dict[str, Any]]:
        """Stream choices for one batch; the last one of the request carries `finish_reason`.

        `tally` counts up to and including the choice yielded last.
        """
        self.tally.cached = batch.cached_tokens
        runs = _runs(batch.items)
        if batch.finish_reason is not None and not runs:
            runs = [(None, [])]
        for number, (channel, items) in enumerate(runs):
            ends = batch.finish_reason is not None and number == len(runs) - 1
            self.tally.add(items)
            choice: dict[str, Any] = {
                "index": self._index,
                "delta": self._delta(channel, items, batch.finish_reason if ends else None),
                "logprobs": chat_logprobs(items, self._vocabulary),
                "finish_reason": None,
            }
            if ends:
                choice["finish_reason"] = self._finish_reason(batch.finish_reason)
                choice["stop_reason"] = batch.stop_reason
            if self._token_ids:
                choice["token_ids"] = [i.token_id for i in items if i.token_id is not None]
            yield choice

    def _finish_reason(self, reason: str | None) -> str | None:
        called = self._parser is not None and self._parser.called
        return "tool_calls" if called and reason == "stop" else reason

    def _delta(
        self, channel: Channel | None, items: list[OutputItem], finish: str | None
    ) -> dict[str, Any]:
        text = "".join(i.text for i in items if i.channel is not Channel.TAG)
        if channel is Channel.REASONING:
            return {"reasoning": text} if text else {}
        if self._parser is None:
            return {} if channel is None else {"content": text}
        return self._tool_delta(text, channel, finish)

    def _tool_delta(self, text: str, channel: Channel | None, finish: str | None) -> dict[str, Any]:
        assert self._parser is not None
        self._answered = self._answered or channel is Channel.ANSWER
        if self._forced is not None:
            text = self._forced.feed(text)
            if finish == "stop" and self._answered:
                text += self._forced.finish()
        events = self._parser.feed(text)
        if finish is not None:
            events += self._parser.finish()
        return _tool_event_delta(events, channel)


def _runs(items: list[OutputItem]) -> list[tuple[Channel | None, list[OutputItem]]]:
    """Splits items where reasoning and answer meet; tag tokens stay with what stands before."""
    runs: list[tuple[Channel | None, list[OutputItem]]] = []
    for item in items:
        if item.channel is Channel.TAG:
            if not runs:
                runs.append((None, []))
        elif not runs or (runs[-1][0] is not None and runs[-1][0] is not item.channel):
            runs.append((item.channel, []))
        elif runs[-1][0] is None:
            runs[-1] = (item.channel, runs[-1][1])
        runs[-1][1].append(item)
    return runs


def _tool_event_delta(events: list[ToolEvent], channel: Channel | None) -> dict[str, Any]:
    delta: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for event in events:
        if isinstance(event, ContentPiece):
            delta["content"] = delta.get("content", "") + event.text
        elif isinstance(event, CallStart):
            calls[event.index] = {
                "index": event.index,
                "id": f"chatcmpl-tool-{uuid.uuid4().hex[:16]}",
                "type": "function",
                "function": {"name": event.name, "arguments": ""},
            }
        elif isinstance(event, CallArguments):
            call = calls.setdefault(
                event.index, {"index": event.index, "function": {"arguments": ""}}
            )
            call["function"]["arguments"] += event.text
    if calls:
        delta["tool_calls"] = list(calls.values())
    elif not delta and channel is Channel.ANSWER:
        delta["content"] = ""
    return delta


class ChatMessage:
    """Gathers stream choices into the message of a reply that is not streamed."""

    def __init__(self) -> None:
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._logprobs: list[Any] = []
        self._token_ids: list[int] = []
        self._last: dict[str, Any] = {}

    def add(self, choice: dict[str, Any]) -> None:
        """Takes the next stream choice."""
        delta = choice["delta"]
        self._reasoning.append(delta.get("reasoning", ""))
        self._content.append(delta.get("content", ""))
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                plain = {k: v for k, v in call.items() if k != "index"}
                self._calls.append({**plain, "function": dict(call["function"])})
            else:
                self._calls[-1]["function"]["arguments"] += call["function"]["arguments"]
        if choice["logprobs"]:
            self._logprobs.extend(choice["logprobs"]["content"])
        self._token_ids.extend(choice.get("token_ids", ()))
        self._last = choice

    def choice(self) -> dict[str, Any]:
        """The finished choice."""
        content, reasoning = "".join(self._content), "".join(self._reasoning)
        result: dict[str, Any] = {
            "index": self._last["index"],
            "message": {
                "role": "assistant",
                "content": content or (None if self._calls or reasoning else ""),
                "refusal": None,
                "reasoning": reasoning or None,
                "tool_calls": self._calls,
            },
            "logprobs": {"content": self._logprobs} if self._logprobs else None,
            "finish_reason": self._last["finish_reason"],
            "stop_reason": self._last.get("stop_reason"),
        }
        if "token_ids" in self._last:
            result["token_ids"] = self._token_ids
        return result
