"""What a worker says of itself: capabilities at join, numbers at a scrape. Values only."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """Capabilities, fixed for one `worker_epoch`. None is unknown."""

    worker_epoch: str
    models: tuple[str, ...]
    features: frozenset[str] = frozenset()
    think_start_ids: tuple[int, ...] = ()
    think_end_ids: tuple[int, ...] = ()
    wrap_up_text: str | None = None
    wrap_up_ids: tuple[int, ...] = ()
    block_size: int = 16
    num_blocks: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    kv_bytes_per_token: int | None = None
    stream_interval: int | None = None
    model_cards: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerScrape:
    """One reading of a worker's metrics. An absent metric is None, never 0.

    `waiting` counts all waiting requests, `waiting_capacity` those that wait for memory.
    `inter_token_s` is (sum of seconds, count) of the inter-token histogram.
    """

    running: int | None = None
    waiting: int | None = None
    waiting_capacity: int | None = None
    kv_used_fraction: float | None = None
    num_blocks: int | None = None
    block_size: int | None = None
    preemptions: int | None = None
    generation_tokens: int | None = None
    inter_token_s: tuple[float, float] | None = None
    process_start_s: float | None = None
