"""What the embedded worker is started with. `__main__` reads it from the command line."""

from dataclasses import dataclass
from pathlib import Path

SHIPPED_MODEL = Path(__file__).parent.parent / "models" / "tiny_reasoner"


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Settings of one worker process.

    Attributes:
        model: directory of a Hugging Face model with tokenizer.
        served_model_name: the name that requests use.
        num_blocks, block_size: size of the KV pool; `block_size` is in tokens.
        max_num_seqs: most requests running at once.
        max_model_len: most tokens of prompt and output together; never above the pool.
        max_batch_tokens: most prompt tokens computed in one step.
        stream_interval: output tokens per streamed chunk; the first token is sent at once.
        signal_interval: output tokens per signal row.
        reasoning_end_str: text that ends thinking when a budget is spent.
        think_start, think_end: think tags as text; used where the tokenizer has them.
        seed: seed of requests that bring none.
        threads: torch threads.
        drain_s: seconds that open streams get after SIGTERM.
    """

    model: Path = SHIPPED_MODEL
    served_model_name: str = "tiny-reasoner"
    host: str = "127.0.0.1"
    port: int = 8081
    num_blocks: int = 2048
    block_size: int = 16
    max_num_seqs: int = 64
    max_model_len: int = 4096
    max_batch_tokens: int = 1024
    stream_interval: int = 1
    signal_interval: int = 8
    reasoning_end_str: str = "\n</think>\n\n"
    think_start: str = "<think>"
    think_end: str = "</think>"
    seed: int = 0
    threads: int = 1
    drain_s: int = 5

    def __post_init__(self) -> None:
        for name in (
            "num_blocks",
            "max_num_seqs",
            "max_model_len",
            "max_batch_tokens",
            "stream_interval",
            "signal_interval",
            "threads",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.block_size < 4:
            raise ValueError("block_size must be at least 4")
        if self.max_num_seqs > self.max_batch_tokens:
            raise ValueError("max_num_seqs must not exceed max_batch_tokens")

    @property
    def context_tokens(self) -> int:
        """Most tokens of one request: one request alone always fits into the pool."""
        return min(self.max_model_len, self.num_blocks * self.block_size)
