"""Adapter to transformers' continuous-batching manager (pinned 5.24.0): its internals stop here.

The manager gives the paged cache, the batch tensors, the forward pass and the generation thread.
This adapter adds the scheduler, the CPU attention, the sampler and a mailbox whose commands run
between steps on the engine's thread.
"""

import logging
import os
import random
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching.cache import PagedAttentionMemoryHandler
from transformers.generation.continuous_batching.requests import GenerationOutput, RequestState
from transformers.generation.continuous_batching.scheduler import SCHEDULER_MAPPING
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging as transformers_logging

from governor.core.signals import SignalFlag
from governor_probes.embedded import engine_attention, engine_scheduler
from governor_probes.embedded.control import ControlDesk, ControlReply, ControlRequest
from governor_probes.embedded.metrics import EngineGauges, WorkerMetrics
from governor_probes.embedded.request import EngineRequest, OutputBatch, SignalRow
from governor_probes.embedded.settings import WorkerSettings
from governor_probes.embedded.step import TokenStep
from governor_probes.embedded.vocabulary import Vocabulary
from governor_probes.landing_state import ThinkTags, WrapUp

Published = tuple[list[tuple[EngineRequest, OutputBatch]], list[SignalRow]]


class EngineDead(RuntimeError):
    """The generation thread has ended with an error; the worker must be restarted."""


class TransformersEngine:
    """One model, one KV pool, one generation thread.

    Args:
        publish: called on the engine's thread after each step that has output, with what the step
            adds per request and the signal rows. Must not block.
    """

    def __init__(self, settings: WorkerSettings, publish: Callable[[Published], None]) -> None:
        torch.set_num_threads(settings.threads)
        self.settings = settings
        self._publish = publish
        transformers_logging.disable_progress_bar()
        # It warns of settings that do not apply to a pool of fixed size on CPU.
        logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)
        tokenizer = AutoTokenizer.from_pretrained(settings.model)
        model = AutoModelForCausalLM.from_pretrained(settings.model, dtype=torch.float32).eval()
        self.default_sampling = model.generation_config
        self.vocabulary = Vocabulary(tokenizer, _eos_ids(model, tokenizer))
        self.tags: ThinkTags | None = self.vocabulary.think_tags(
            settings.think_start, settings.think_end
        )
        self.wrap_up: WrapUp | None = None
        if self.tags is not None:
            self.wrap_up = self.vocabulary.wrap_up(settings.reasoning_end_str, self.tags)
        self.metrics = WorkerMetrics(settings.served_model_name)
        self._requests: dict[str, EngineRequest] = {}
        self._inbox: deque[Callable[[], None]] = deque()
        self._queued = 0
        self._order = 0
        self._lock = threading.Lock()
        self.control_desk = ControlDesk(self.vocabulary, self.tags, self._cut)
        control_id = self.tags.end_ids[0] if self.tags else None
        self._step = TokenStep(self.vocabulary, settings, self.metrics, control_id)
        self._manager = self._build_manager(model)
        self._processor = self._build_processor()
        self._cache = self._processor.cache
        self._scheduler: Any = self._processor.scheduler
        (self._allocator,) = self._cache.cache_allocators.values()
        self.metrics.watch(self.gauges, settings.num_blocks, settings.block_size)

    # ------------------------------------------------------------------ building

    def _build_manager(self, model: Any) -> Any:
        s = self.settings
        SCHEDULER_MAPPING[engine_scheduler.NAME] = engine_scheduler.PreemptingScheduler
        # The registry is global and the attention keeps a step's state: one name per engine.
        attention = f"{engine_attention.NAME}_{uuid.uuid4().hex}"
        ALL_ATTENTION_FUNCTIONS.register(attention, engine_attention.PagedCpuAttention())
        manager = model.init_continuous_batching(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=s.block_size,
                num_blocks=s.num_blocks,
                max_batch_tokens=s.max_batch_tokens,
                max_requests_per_batch=s.max_num_seqs,
                max_blocks_per_request=0,
                use_async_batching=False,
                use_cuda_graph=False,
                auto_switch_to_flash=False,
                scheduler_type=engine_scheduler.NAME,
                safety_margin=0.0,
                cpu_offload_space_safety_threshold=1.0,
                seed=s.seed,
            ),
        )
        # The manager accepts a block table with flash kernels only; set behind its check, it
        # serves our attention just as well. One block more than the context, for rounding.
        manager.continuous_batching_config.max_blocks_per_request = (
            s.context_tokens + s.block_size - 1
        ) // s.block_size + 1
        model.config._attn_implementation = attention
        return manager

    def _build_processor(self) -> Any:
        with _known_memory():
            processor = self._manager._create_batch_processor()
        if list(processor.cache.cache_allocators) != ["full_attention"]:
            raise ValueError("only models with full attention in every layer are served")
        scheduler = processor.scheduler
        scheduler.rank = self._rank
        scheduler.on_admit = self._admitted
        scheduler.on_preempt = self._preempted
        prepare, update = processor.prepare_next_batch, processor.update_batch
        processor.prepare_next_batch = partial(self._prepare, prepare)
        processor.update_batch = partial(self._update, update)
        processor.model_runner._sample = self._sample
        router = self._manager.output_router
        router.deliver_batch = _ignore
        router.deliver = self._failed
        self._manager.batch_processor = processor
        return processor

    # ------------------------------------------------------------------ any thread

    def start(self) -> None:
        """Starts the generation thread."""
        self._manager.start()

    def stop(self) -> None:
        """Stops at once; requests still running end with an error batch."""
        self._manager.stop(block=True, timeout=10, hard_stop=True)

    @property
    def alive(self) -> bool:
        """False when the generation thread has died or was stopped."""
        return bool(self._manager.is_running())

    def submit(self, request: EngineRequest) -> None:
        """Queues a request. Output arrives through `publish`.

        Raises:
            EngineDead: the generation thread is gone.
        """
        if not self.alive:
            raise EngineDead("the engine has stopped")
        with self._lock:
            self._queued += 1
        self._post(lambda: self._add(request))

    def abort(self, key: str) -> None:
        """Drops a request and frees its blocks before the next step. Unknown keys are ignored."""
        self._post(lambda: self._abort(key))

    def control(self, message: ControlRequest, reply: Callable[[ControlReply], None]) -> None:
        """Applies a control message between two steps; `reply` runs on the engine's thread."""
        if not self.alive:
            raise EngineDead("the engine has stopped")
        self._post(lambda: reply(self.control_desk.apply(message)))

    def gauges(self) -> EngineGauges:
        """Present counts. KV usage counts blocks that requests hold, not merely cached ones."""
        scheduler = self._scheduler
        used = self._cache.num_blocks - scheduler.free_blocks
        waiting = len(scheduler.waiting_requests) + self._queued
        return EngineGauges(
            running=len(scheduler.active_requests),
            waiting=waiting,
            kv_usage=max(0.0, used / self._cache.num_blocks),
        )

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values per token over all layers, as the pool lays them out."""
        return int(self._allocator.bytes_per_block // self._allocator.tokens_per_page)

    def _post(self, command: Callable[[], None]) -> None:
        self._inbox.append(command)
        self._manager._wake_up_loop.set()

    # ------------------------------------------------------------------ engine thread

    def _prepare(self, prepare: Callable[[], bool]) -> bool:
        while self._inbox:
            self._inbox.popleft()()
        ready = prepare()
        if not ready:
            self._flush()
        return ready

    def _update(self, update: Callable[[], None]) -> None:
        update()
        self._flush()

    def _flush(self) -> None:
        """Publishes after the step's blocks are freed, so that a finished request holds none."""
        out, rows = self._step.take()
        now = time.monotonic()
        for request, _ in out:
            if request.finish_reason is not None and request.key in self._requests:
                del self._requests[request.key]
                self.control_desk.forget(request)
                self.metrics.finished(request, now)
        if out or rows:
            self._publish((out, rows))

    def _sample(self, scores: Tensor, output_ids: Tensor) -> None:
        """Stands in for the runner's sampler: (1, rows, vocabulary) logits to token ids."""
        states = [
            future.state
            for future in self._processor.inputs_and_outputs.requests_in_batch
            if future.has_new_token
        ]
        if not states:
            return
        requests = [self._requests[state.request_id] for state in states]
        tokens = self._step.run(scores[0, : len(states)], requests, time.monotonic())
        output_ids[0, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        for state, request in zip(states, requests, strict=True):
            if request.finish_reason is not None:
                # The manager ends a request whose limit is reached by the token of this step.
                state._new_tokens_limit = len(state.generated_tokens) + 1

    def _add(self, request: EngineRequest) -> None:
        with self._lock:
            self._queued -= 1
        request.order = self._order
        self._order += 1
        self._requests[request.key] = request
        self.control_desk.register(request)
        self._scheduler.add_waiting_request(
            RequestState(
                request_id=request.key,
                initial_tokens=list(request.prompt_ids),
                max_new_tokens=None,
                eos_token_id=None,
            )
        )

    def _abort(self, key: str) -> None:
        request = self._requests.get(key)
        if request is not None:
            self._end_early(request, "abort")

    def _cut(self, request: EngineRequest) -> None:
        self._end_early(request, "length")

    def _end_early(self, request: EngineRequest, reason: str) -> None:
        self._scheduler.set_request_cancellation(request.key)
        self._step.end(request, reason)
        if request.key in self._requests:
            self._flush_after_cancel()

    def _flush_after_cancel(self) -> None:
        # Free the blocks first: whoever hears of the end must find them free.
        self._scheduler.clear_cancelled_requests()
        self._flush()

    def _failed(self, output: GenerationOutput) -> None:
        request = self._requests.get(output.request_id)
        if request is not None:
            self._step.end(request, "error", error=output.error or "engine error")
            self._flush()

    def _rank(self, key: str) -> tuple[int, int]:
        request = self._requests.get(key)
        return (0, -1) if request is None else (request.priority, request.order)

    def _admitted(self, key: str, cached_tokens: int) -> None:
        request = self._requests[key]
        if request.scheduled_s is None:
            request.scheduled_s = time.monotonic()
            request.cached_tokens = cached_tokens
            self.metrics.scheduled(request, request.scheduled_s)

    def _preempted(self, key: str) -> None:
        request = self._requests[key]
        request.preemptions += 1
        request.signal.flags |= SignalFlag.RECOMPUTED
        self.metrics.preempted()


def request_rng(settings: WorkerSettings, seed: int | None, index: int) -> random.Random:
    """A request's own generator: the same seed gives the same draws whatever else is running."""
    return random.Random(f"{settings.seed if seed is None else seed}/{index}")


@contextmanager
def _known_memory() -> Iterator[None]:
    """Tells the manager the machine's memory while it lays out the pool.

    It reads it by psutil, which is not a dependency, and takes 0 where that is missing. The pool's
    size is fixed by the settings; the figure serves its plausibility check only.
    """
    original = PagedAttentionMemoryHandler.get_available_memory
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    PagedAttentionMemoryHandler.get_available_memory = lambda handler: physical
    try:
        yield
    finally:
        PagedAttentionMemoryHandler.get_available_memory = original


def _ignore(outputs: list[GenerationOutput]) -> None:
    """Output goes out through the step, not through the manager's queue."""


def _eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    found: set[int] = set()
    for source in (model.generation_config.eos_token_id, tokenizer.eos_token_id):
        if isinstance(source, int):
            found.add(source)
        elif source is not None:
            found.update(int(i) for i in source)
    return frozenset(found)
