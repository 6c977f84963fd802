"""How large a prompt is: text bytes, or tokens where the client sent token ids. No tokenizer."""

from dataclasses import dataclass
from typing import Any

from governor.core.errors import RequestInvalid

# The members of a message that a chat template writes out as text.
_TEXT_MEMBERS = (
    "content",
    "text",
    "reasoning",
    "reasoning_content",
    "refusal",
    "tool_calls",
    "function_call",
    "function",
    "name",
    "arguments",
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """Size of a request's prompts together. `tokens` is exact, None unless ids were sent.

    `count` is the number of prompts: completions take several at once.
    """

    text_bytes: int
    tokens: int | None = None
    count: int = 1


def read_prompt(sent: dict[str, Any], endpoint: str) -> Prompt:
    """Check and measure `messages` or `prompt`. Raises RequestInvalid."""
    return _messages(sent) if endpoint == "chat" else _prompt(sent.get("prompt"))


def _messages(sent: dict[str, Any]) -> Prompt:
    messages = sent.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestInvalid("messages must be a non-empty list", "messages")
    for position, message in enumerate(messages):
        if not isinstance(message, dict):
            name = f"messages[{position}]"
            raise RequestInvalid(f"{name} must be an object", name)
    tools = sent.get("tools") or sent.get("functions")
    return Prompt(_text_bytes(messages) + _all_bytes(tools))


def _prompt(prompt: Any) -> Prompt:
    if isinstance(prompt, str):
        return Prompt(_size(prompt))
    if isinstance(prompt, list) and prompt:
        if all(isinstance(part, str) for part in prompt):
            return Prompt(sum(map(_size, prompt)), count=len(prompt))
        if _are_ids(prompt):
            return Prompt(0, tokens=len(prompt))
        if all(isinstance(part, list) and part and _are_ids(part) for part in prompt):
            return Prompt(0, tokens=sum(map(len, prompt)), count=len(prompt))
    message = "prompt must be a string, a list of strings, a list of token ids or a list of those"
    raise RequestInvalid(message, "prompt")


def _are_ids(part: list[Any]) -> bool:
    return all(type(token) is int and token >= 0 for token in part)


def _text_bytes(value: Any) -> int:
    """Bytes of the text in a message or its parts; images and other data count nothing here."""
    if isinstance(value, str):
        return _size(value)
    if isinstance(value, list):
        return sum(map(_text_bytes, value))
    if isinstance(value, dict):
        return sum(_text_bytes(value[name]) for name in _TEXT_MEMBERS if name in value)
    return 0


def _all_bytes(value: Any) -> int:
    """Bytes of all names and texts: a template writes tool schemas out whole."""
    if isinstance(value, str):
        return _size(value)
    if isinstance(value, list):
        return sum(map(_all_bytes, value))
    if isinstance(value, dict):
        return sum(_size(name) + _all_bytes(member) for name, member in value.items())
    return 0


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
