"""Pieces of OpenAI-shaped output that chat and completions share: usage and logprobs."""

from collections.abc import Iterable
from typing import Any

from governor_probes.embedded.request import OutputItem
from governor_probes.embedded.vocabulary import Vocabulary
from governor_probes.landing_state import Channel

_LEAST_LOGPROB = -9999.0


class TokenTally:
    """Counts one choice's output tokens as they go out."""

    __slots__ = ("cached", "completion", "reasoning")

    def __init__(self) -> None:
        self.completion = 0
        self.reasoning = 0
        self.cached: int | None = None

    def add(self, items: Iterable[OutputItem]) -> None:
        """Counts items; those without a token are text only."""
        for item in items:
            if item.token_id is not None:
                self.completion += 1
                self.reasoning += item.channel is Channel.REASONING


def usage(prompt_tokens: int, tallies: Iterable[TokenTally]) -> dict[str, Any]:
    """The usage object. Reasoning tokens leave the tags out; cached tokens are None if unknown."""
    tallies = list(tallies)
    completion = sum(t.completion for t in tallies)
    cached = tallies[0].cached
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": None if cached is None else {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": sum(t.reasoning for t in tallies)},
    }


def chat_logprobs(items: Iterable[OutputItem], vocabulary: Vocabulary) -> dict[str, Any] | None:
    """`logprobs` of a chat choice; None where none were asked."""
    entries = [
        {
            **_entry(vocabulary, item.token_id, item.logprob.value),
            "top_logprobs": [_entry(vocabulary, i, value) for i, value in item.logprob.top],
        }
        for item in items
        if item.logprob is not None and item.token_id is not None
    ]
    return {"content": entries} if entries else None


def _entry(vocabulary: Vocabulary, token_id: int, value: float) -> dict[str, Any]:
    return {
        "token": vocabulary.token_string(token_id),
        "logprob": max(value, _LEAST_LOGPROB),
        "bytes": list(vocabulary.raw(token_id)),
    }


def completion_logprobs(
    items: Iterable[OutputItem], vocabulary: Vocabulary, offset: int
) -> dict[str, Any] | None:
    """`logprobs` of a completion choice; `offset` is the length of the text before these items."""
    result: dict[str, list[Any]] = {
        "tokens": [],
        "token_logprobs": [],
        "top_logprobs": [],
        "text_offset": [],
    }
    for item in items:
        if item.logprob is not None and item.token_id is not None:
            result["tokens"].append(vocabulary.token_string(item.token_id))
            result["token_logprobs"].append(max(item.logprob.value, _LEAST_LOGPROB))
            result["top_logprobs"].append(
                {vocabulary.token_string(i): max(v, _LEAST_LOGPROB) for i, v in item.logprob.top}
            )
            result["text_offset"].append(offset)
        offset += len(item.text)
    return result if result["tokens"] else None
