"""One request inside the engine: what was asked, and what has come out. No engine code."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from governor_probes.embedded.stop_text import StopText
from governor_probes.embedded.vocabulary import TextDecoder
from governor_probes.landing_state import Channel, LandingState


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling of one request. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 switch off.

    `top_logprobs` is None where no logprobs are asked, else the number of alternatives (0..20).
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    include_stop: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    top_logprobs: int | None = None

    @property
    def penalised(self) -> bool:
        """Whether past output tokens change the logits."""
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


class Logprob(NamedTuple):
    """Raw log-probability of an output token and of the best alternatives, before sampling."""

    value: float
    top: tuple[tuple[int, float], ...]


class OutputItem(NamedTuple):
    """One output token as the server sees it; `token_id` None carries text held back earlier."""

    token_id: int | None
    channel: Channel
    text: str
    logprob: Logprob | None


class OutputBatch(NamedTuple):
    """What one step adds to a request's output. `finish_reason` is set on the last batch."""

    items: list[OutputItem]
    finish_reason: str | None
    stop_reason: int | str | None
    cached_tokens: int | None
    error: str | None = None


class SignalRow(NamedTuple):
    """One row of the signals contract, in its order."""

    rid: str
    attempt: int
    position: int
    tokens: list[int]
    entropy: float | None
    margin: float | None
    value: float | None
    flags: int


@dataclass(slots=True)
class SignalState:
    """What has gathered since a request's last signal row."""

    tokens: list[int] = field(default_factory=list)
    entropy_sum: float = 0.0
    entropy_count: int = 0
    flags: int = 0


@dataclass(slots=True)
class EngineRequest:
    """A request on its way through the engine. Touched by the engine's thread only once submitted.

    `deliver` is called on the server's event loop with each OutputBatch.
    """

    key: str
    rid: str
    attempt: int
    prompt_ids: list[int]
    sampling: Sampling
    landing: LandingState
    decoder: TextDecoder
    stop: StopText
    rng: random.Random
    deliver: Callable[[OutputBatch], None]
    arrival_s: float
    priority: int = 0
    order: int = 0
    think_end_id: int | None = None
    output_ids: list[int] = field(default_factory=list)
    counts: dict[int, int] = field(default_factory=dict)
    unresolved: list[OutputItem] = field(default_factory=list)
    unsent: list[OutputItem] = field(default_factory=list)
    unsent_tokens: int = 0
    text_channel: Channel = Channel.ANSWER
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    thinking_tokens: int = 0
    cached_tokens: int | None = None
    preemptions: int = 0
    scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    signal: SignalState = field(default_factory=SignalState)

    @property
    def position(self) -> int:
        """Output tokens so far."""
        return len(self.output_ids)
