"""Transcript: what a streamed completion and its signals say, folded into one state. No I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_REASONING = ("reasoning", "reasoning_content")


@dataclass(slots=True)
class Transcript:
    """One answer as it grows. None everywhere means: not known (yet), or missing.

    `entropies` holds one figure per signal row, None where the row had none. `used_exact` tells
    counted reasoning tokens from counted chunks.
    """

    headers: dict[str, str] = field(default_factory=dict)
    thinking: str = ""
    answer: str = ""
    tool_calls: dict[int, dict[str, str]] = field(default_factory=dict)
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    governor: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    entropies: list[float | None] = field(default_factory=list)
    signals_missing: str | None = None
    done: bool = False
    _chunks: int = 0

    def opened(self, headers: Mapping[str, str]) -> None:
        """The response has begun."""
        known = {name.lower(): value for name, value in headers.items()}
        self.headers = {n: v for n, v in known.items() if n.startswith("x-governor-")}

    def event(self, event: Mapping[str, Any]) -> tuple[str, str]:
        """Take one event; returns the thinking and the answer text that it added."""
        if (error := event.get("error")) is not None:
            self.error = error if isinstance(error, dict) else {"message": str(error)}
            return "", ""
        if (usage := event.get("usage")) is not None:
            self.usage = usage
        if (governor := event.get("governor")) is not None:
            self.governor = governor
        thinking = answer = ""
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            reasoning = next((delta[name] for name in _REASONING if delta.get(name)), "")
            self._chunks += bool(reasoning)
            thinking += reasoning
            answer += delta.get("content") or ""
            self._calls(delta.get("tool_calls") or ())
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
        self.thinking += thinking
        self.answer += answer
        return thinking, answer

    def signal(self, row: Mapping[str, Any]) -> None:
        """Take one row of the signals."""
        self.entropies.append(row.get("entropy"))

    def _calls(self, pieces: Any) -> None:
        for piece in pieces:
            call = self.tool_calls.setdefault(piece.get("index", 0), {"name": "", "arguments": ""})
            function = piece.get("function") or {}
            call["name"] += function.get("name") or ""
            call["arguments"] += function.get("arguments") or ""

    @property
    def decision_id(self) -> str | None:
        """The decision's id."""
        return self.headers.get("x-governor-decision")

    @property
    def answered(self) -> bool:
        """Whether there is an answer: text or a tool call."""
        return bool(self.answer.strip() or self.tool_calls)

    @property
    def granted_tokens(self) -> int | None:
        """The thinking budget; None without one."""
        if self.governor is not None:
            return _whole(self.governor.get("granted_tokens"))
        return _whole(self.headers.get("x-governor-budget-granted"))

    @property
    def used_tokens(self) -> int:
        """Reasoning tokens so far: the gateway's count, else the worker's, else chunks."""
        told = self._told
        return self._chunks if told is None else told

    @property
    def used_exact(self) -> bool:
        """Whether `used_tokens` counts tokens."""
        return self._told is not None

    @property
    def _told(self) -> int | None:
        if self.governor is not None:
            used = _whole(self.governor.get("used_tokens"))
            if used is not None:
                return used
        details = (self.usage or {}).get("completion_tokens_details") or {}
        return _whole(details.get("reasoning_tokens"))

    def as_json(self) -> dict[str, Any]:
        """The finished transcript as plain values."""
        return {
            "decision_id": self.decision_id,
            "answer": self.answer.strip(),
            "answered": self.answered,
            "thinking": self.thinking,
            "tool_calls": [self.tool_calls[index] for index in sorted(self.tool_calls)],
            "finish_reason": self.finish_reason,
            "used_tokens": self.used_tokens,
            "used_exact": self.used_exact,
            "granted_tokens": self.granted_tokens,
            "governor": self.governor,
            "headers": self.headers,
            "usage": self.usage,
            "entropy": self.entropies or None,
            "error": self.error,
            "done": self.done,
        }


def _whole(value: Any) -> int | None:
    """A count, however it is written; None for what is none."""
    try:
        return None if value is None or isinstance(value, bool) else int(value)
    except (TypeError, ValueError):
        return None
