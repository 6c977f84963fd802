"""Trains the tiny reasoner from scratch in minutes on two CPU cores. Not run by tests or CI.

    python -m governor_probes.tiny_reasoner.train OUT --minutes 11 --seed 1

`--resume` goes on from other weights, `--gap` lets a share of the chains jump in their positions,
`--long-share` trains a share of the endless chains at full length, `--max-share` mixes in the
second task, and `--smooth` spreads the number of checks over the hard problems.

A seed fixes the start and the order of the data. With `--steps` it fixes the schedule, too;
without, the schedule follows the wall clock, and another machine gives other weights.
"""

import argparse
import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from governor_probes.tiny_reasoner.build_data import ExampleBuilder
from governor_probes.tiny_reasoner.muon import Muon
from governor_probes.tiny_reasoner.position_jumps import PositionJumps
from governor_probes.tiny_reasoner.task import (
    CHECK_LINE,
    LETTERS,
    TaskKind,
    make_problem,
    prompt_text,
)
from governor_probes.tiny_reasoner.tokenizer import CONTEXT_TOKENS, build_tokenizer

_ITEMS = tuple(range(2, 17))
_ITEMS_WEIGHTS = (1.0,) * 4 + (1.3,) * 4 + (0.9,) * 5 + (0.4,) * 2


@dataclass(frozen=True, slots=True)
class Settings:
    """What one training run depends on. Rates are for Muon (matrices) and AdamW (the rest)."""

    minutes: float = 11.0
    steps: int = 0
    seed: int = 1
    threads: int = 2
    batch_tokens: int = 3000
    matrix_rate: float = 1e-2
    other_rate: float = 3e-3
    width: int = 128
    layers: int = 3
    head_width: int = 32
    rope_theta: float = 1000.0
    init_range: float = 0.06
    resume: str = ""
    gap: float = 0.0
    longest_positions: int = 3000
    max_share: float = 0.0
    smooth: bool = False
    long_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Sample:
    """Prompt and completion as one sequence with its loss weights."""

    token_ids: list[int]
    weights: list[float]
    prompt_tokens: int = 0


def build_model(settings: Settings, vocabulary: int, end_id: int, pad_id: int) -> LlamaForCausalLM:
    """A Llama with tied embeddings and freshly drawn weights."""
    heads = settings.width // settings.head_width
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=settings.width,
            intermediate_size=int(settings.width * 8 / 3) // 32 * 32,
            num_hidden_layers=settings.layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            head_dim=settings.head_width,
            max_position_embeddings=CONTEXT_TOKENS,
            rope_parameters={"rope_type": "default", "rope_theta": settings.rope_theta},
            initializer_range=settings.init_range,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=end_id,
            pad_token_id=pad_id,
        )
    )


class Batches:
    """Draws batches of about `batch_tokens` padded tokens, short problems and copying first."""

    def __init__(self, encode: Any, rng: Random, settings: Settings) -> None:
        self._encode = encode
        self._builder = ExampleBuilder(
            encode, smooth=settings.smooth, long_share=settings.long_share
        )
        self._rng = rng
        self._batch_tokens = settings.batch_tokens
        self._max_share = settings.max_share
        self._resumed = bool(settings.resume)
        self._pool: list[list[Sample]] = []

    def next(self, progress: float) -> list[Sample]:
        """The next batch at `progress` (0 to 1) of the run."""
        if not self._pool:
            self._fill(progress)
        return self._pool.pop()

    def _fill(self, progress: float) -> None:
        most_items = 4 if progress < 0.08 else 8 if progress < 0.22 else 16
        copying = 0.5 if progress < 0.08 else 0.03
        if self._resumed:
            most_items, copying = 16, 0.03
        samples: list[Sample] = []
        drawn_tokens = 0
        while drawn_tokens < self._batch_tokens * 16:
            if self._rng.random() < copying:
                sample = self._copying()
            else:
                sample = self._problem(most_items)
            samples.append(sample)
            drawn_tokens += len(sample.token_ids)
        samples.sort(key=lambda sample: len(sample.token_ids))
        batch: list[Sample] = []
        for sample in samples:
            if batch and len(sample.token_ids) * (len(batch) + 1) > self._batch_tokens:
                self._pool.append(batch)
                batch = []
            batch.append(sample)
        if batch:
            self._pool.append(batch)
        self._rng.shuffle(self._pool)

    def _copying(self) -> Sample:
        characters = "0123456789" + LETTERS
        pairs = "".join(
            self._rng.choice(LETTERS) + self._rng.choice(characters)
            for _ in range(self._rng.randint(3, 12))
        )
        example = self._builder.copying_example(pairs)
        prompt: list[int] = self._encode(prompt_text("say " + pairs))
        return Sample(prompt + example.token_ids, [0.0] * len(prompt) + example.weights)

    def _problem(self, most_items: int) -> Sample:
        items = self._rng.choices(_ITEMS, _ITEMS_WEIGHTS)[0]
        if items > most_items:
            items = self._rng.randint(2, most_items)
        second = self._max_share > 0 and self._rng.random() < self._max_share
        problem = make_problem(self._rng, items, TaskKind.MAX if second else TaskKind.SUM)
        prompt: list[int] = self._encode(prompt_text(problem.question))
        example = self._builder.example(problem, self._rng)
        weights = [0.0] * len(prompt) + example.weights
        return Sample(prompt + example.token_ids, weights, len(prompt))


def weighted_loss(
    model: LlamaForCausalLM,
    batch: list[Sample],
    pad_id: int,
    jumps: PositionJumps | None = None,
) -> torch.Tensor:
    """Mean cross-entropy over weighted tokens. Padding is on the right, so no mask is needed."""
    longest = max(len(sample.token_ids) for sample in batch)
    token_ids = torch.full((len(batch), longest), pad_id)
    weights = torch.zeros((len(batch), longest))
    for row, sample in enumerate(batch):
        token_ids[row, : len(sample.token_ids)] = torch.tensor(sample.token_ids)
        weights[row, : len(sample.weights)] = torch.tensor(sample.weights)
    chains = [(sample.token_ids, sample.prompt_tokens) for sample in batch]
    positions = None if jumps is None else jumps.draw(chains, longest)
    if positions is None:
        logits = model(input_ids=token_ids).logits
    else:
        # With positions that jump, an explicit mask keeps transformers from taking the rows for
        # several packed sequences.
        mask = torch.ones_like(token_ids)
        logits = model(input_ids=token_ids, position_ids=positions, attention_mask=mask).logits
    losses = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), token_ids[:, 1:].flatten(), reduction="none"
    )
    flat = weights[:, 1:].flatten()
    return (losses * flat).sum() / flat.sum()


def rate_factor(step: int, progress: float) -> float:
    """Linear warm-up over 80 steps, level for a tenth of the run, then a cosine to 2 %."""
    fall = min(1.0, max(0.0, progress - 0.1) / 0.9)
    return min(1.0, (step + 1) / 80) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * fall)))


def build_optimisers(
    model: LlamaForCausalLM, settings: Settings
) -> list[tuple[torch.optim.Optimizer, float]]:
    """Muon for the matrices, AdamW for embeddings and norms, each with its full rate."""
    named = list(model.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in named if p.ndim != 2 or "embed" in name]
    rate = settings.other_rate
    return [
        (Muon(matrices, settings.matrix_rate), settings.matrix_rate),
        (torch.optim.AdamW(others, rate, betas=(0.9, 0.98), weight_decay=0.0), rate),
    ]


def train(folder: Path, settings: Settings) -> None:
    """Trains as `settings` say and saves weights, tokenizer and train_log.json in `folder`."""
    torch.set_num_threads(settings.threads)
    torch.manual_seed(settings.seed)
    tokenizer = build_tokenizer(folder)
    model = build_model(settings, len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id)
    if settings.resume:
        model = LlamaForCausalLM.from_pretrained(settings.resume, dtype=torch.float32)
    optimisers = build_optimisers(model, settings)
    batches = Batches(lambda text: tokenizer(text)["input_ids"], Random(settings.seed), settings)
    check_ids = tokenizer(CHECK_LINE + "\n")["input_ids"]
    jumps = PositionJumps(settings.gap, settings.seed + 1, check_ids, settings.longest_positions)
    started, limit_s = time.perf_counter(), settings.minutes * 60
    step, seen_tokens, running, history = 0, 0, math.nan, []
    while True:
        elapsed_s = time.perf_counter() - started
        progress = step / settings.steps if settings.steps else elapsed_s / limit_s
        if progress >= 1.0:
            break
        batch = batches.next(progress)
        for optimiser, rate in optimisers:
            for group in optimiser.param_groups:
                group["lr"] = rate * rate_factor(step, progress)
        loss = weighted_loss(model, batch, tokenizer.pad_token_id, jumps)
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser, _ in optimisers:
            optimiser.step()
        step += 1
        seen_tokens += len(batch) * max(len(sample.token_ids) for sample in batch)
        running = loss.item() if step == 1 else 0.95 * running + 0.05 * loss.item()
        if step % 50 == 0:
            history.append((step, round(elapsed_s), seen_tokens, round(running, 4)))
            print(f"step {step}  {elapsed_s:.0f} s  loss {running:.4f}", flush=True)
    model.save_pretrained(str(folder))
    log = {"settings": asdict(settings), "steps": step, "tokens": seen_tokens, "history": history}
    (folder / "train_log.json").write_text(json.dumps(log), encoding="utf-8")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    for name, default in asdict(Settings()).items():
        flag = "--" + name.replace("_", "-")
        if isinstance(default, bool):
            parser.add_argument(flag, action="store_true")
        else:
            parser.add_argument(flag, type=type(default), default=default)
    arguments = vars(parser.parse_args())
    folder = arguments.pop("folder")
    folder.mkdir(parents=True, exist_ok=True)
    train(folder, Settings(**arguments))


if __name__ == "__main__":
    main()
