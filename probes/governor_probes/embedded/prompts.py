"""Messages to prompt token ids: chat template, closed thinking, continued assistant messages."""

from typing import Any

from governor_probes.embedded.api_error import bad_request
from governor_probes.embedded.body_fields import Body
from governor_probes.embedded.settings import WorkerSettings
from governor_probes.embedded.vocabulary import Vocabulary
from governor_probes.landing_state import ThinkTags

_ROLES = ("system", "developer", "user", "assistant", "tool")


class PromptWriter:
    """Writes the prompts of one model."""

    def __init__(
        self, vocabulary: Vocabulary, tags: ThinkTags | None, settings: WorkerSettings
    ) -> None:
        self._vocabulary = vocabulary
        self._tags = tags
        self._settings = settings

    def chat(self, body: Body) -> list[int]:
        """Prompt ids of a chat body.

        Raises:
            ApiError: 400 for messages or template options that cannot be used.
        """
        messages = _messages(body)
        kwargs = body.table("chat_template_kwargs")
        effort = body.get("reasoning_effort")
        if effort is not None:
            kwargs = {"reasoning_effort": effort, **kwargs}
        generate = body.flag("add_generation_prompt", True)
        if body.flag("continue_final_message"):
            if generate and body.get("add_generation_prompt") is not None:
                raise bad_request(
                    "continue_final_message and add_generation_prompt exclude each other",
                    "continue_final_message",
                )
            return self._vocabulary.encode(self._continued(messages, body, kwargs))
        text = self._render(messages, body, kwargs, generate)
        if generate and kwargs.get("enable_thinking") is False:
            text += self._closing(text)
        return self._vocabulary.encode(text)

    def thinking_open(self, prompt_ids: list[int]) -> bool:
        """Whether the prompt ends inside a thinking block."""
        if self._tags is None:
            return False
        opened = _last(prompt_ids, self._tags.start_ids)
        return opened >= 0 and opened > _last(prompt_ids, self._tags.end_ids)

    def ends_line(self, prompt_ids: list[int]) -> bool:
        """Whether the prompt ends with a newline."""
        return bool(prompt_ids) and self._vocabulary.raw(prompt_ids[-1]).endswith(b"\n")

    def _render(
        self, messages: list[dict[str, Any]], body: Body, kwargs: dict[str, Any], generate: bool
    ) -> str:
        tokenizer = self._vocabulary.tokenizer
        if tokenizer.chat_template is None:
            raise bad_request("the model has no chat template; use /v1/completions", "messages")
        try:
            text: str = tokenizer.apply_chat_template(
                messages,
                tools=body.get("tools"),
                tokenize=False,
                add_generation_prompt=generate,
                **kwargs,
            )
        except Exception as error:
            raise bad_request(f"the chat template refused the messages: {error}") from error
        return text

    def _closing(self, text: str) -> str:
        """What closes thinking at once; nothing where the template has not opened it."""
        if not self._opens(text):
            return ""
        end = self._settings.think_end + "\n\n"
        return end if text.endswith("\n") else "\n" + end

    def _opens(self, text: str) -> bool:
        if self._tags is None:
            return False
        start, end = self._settings.think_start, self._settings.think_end
        return text.rfind(start) > text.rfind(end)

    def _continued(self, messages: list[dict[str, Any]], body: Body, kwargs: dict[str, Any]) -> str:
        """Prompt text that ends in the middle of the last assistant message."""
        last = messages[-1]
        if last["role"] != "assistant":
            raise bad_request("continue_final_message needs a final assistant message", "messages")
        content = last.get("content") or ""
        reasoning = last.get("reasoning")
        head = self._render(messages[:-1], body, kwargs, True)
        start, end = self._settings.think_start, self._settings.think_end
        opened = self._opens(head)
        if self._tags is None:
            return head + content
        if reasoning is not None:
            inside = head if opened else head + start + "\n"
            return inside + reasoning + (end + content if content else "")
        if start in content:
            return (head[: head.rfind(start)] if opened else head) + content
        if end in content or not opened:
            return head + content
        return head + self._closing(head) + content.lstrip("\n")


def _messages(body: Body) -> list[dict[str, Any]]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise bad_request("messages must be a non-empty list", "messages")
    result = []
    for i, message in enumerate(messages):
        where = f"messages[{i}]"
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise bad_request(f"{where}.role must be one of {', '.join(_ROLES)}", where)
        plain = {**message, "content": _content(message.get("content"), where)}
        reasoning = message.get("reasoning", message.get("reasoning_content"))
        if reasoning is not None and not isinstance(reasoning, str):
            raise bad_request(f"{where}.reasoning must be a string", where)
        plain["reasoning"] = reasoning
        result.append(plain)
    return result


def _content(content: object, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
        for part in content
    ):
        return "".join(part["text"] for part in content)
    raise bad_request(f"{where}.content must be text or a list of text parts", where)


def _last(ids: list[int], tag: tuple[int, ...]) -> int:
    for i in range(len(ids) - len(tag), -1, -1):
        if tuple(ids[i : i + len(tag)]) == tag:
            return i
    return -1
