"""Scheduling and KV block accounting for transformers' continuous batching (pinned 5.24.0).

The stock scheduler sends preempted requests to the end of the queue, lets a waiting request with a
cached prefix take blocks that it cannot extend, keeps cached blocks until a running request
starves, and stays closed for new requests when the request that closed it is cancelled. This one
follows vLLM: first come, first served by priority; a running request that cannot grow preempts the
last one, which is recomputed and comes back first; unused cached blocks are free blocks.
"""

import bisect
from collections.abc import Callable
from typing import Any

from transformers.generation.continuous_batching.requests import (
    FutureRequestState,
    RequestState,
    RequestStatus,
)
from transformers.generation.continuous_batching.scheduler import Scheduler

NAME = "governor_preempting"

_Batch = tuple[list[FutureRequestState], bool, int, int]


class PreemptingScheduler(Scheduler):
    """Prefill steps and decode steps alternate; a step is never mixed, so that decode stays on the
    block-table path."""

    # Set by the engine. rank: request id -> (priority, order), lower goes first. on_admit: called
    # with the id and the number of prompt tokens found cached. on_preempt: called with the id.
    rank: Callable[[str], tuple[int, int]]
    on_admit: Callable[[str, int], None]
    on_preempt: Callable[[str], None]

    def add_waiting_request(self, state: RequestState) -> None:
        """Queues a request at its place: by priority, then by first arrival."""
        self.waiting_requests[state.request_id] = state
        order = list(self.waiting_requests_order)
        bisect.insort(order, state.request_id, key=self.rank)
        self.waiting_requests_order.clear()
        self.waiting_requests_order.extend(order)

    def schedule_batch(self, token_budget: int, cache_budget: int) -> _Batch:
        """The next step's requests; an empty list where nothing can run."""
        self.block_new_requests = False
        self.starved_requests: list[tuple[RequestState, int]] = []
        batch = self._prefill_batch(token_budget, cache_budget)
        if batch[0]:
            return batch
        return self._decode_batch()

    @property
    def free_blocks(self) -> int:
        """Blocks that a request could take at once: unused ones and cached ones without owner."""
        allocator = self._allocator
        pool = self.cache.pool
        whole = pool.num_free_sectors * allocator.blocks_per_sector
        unowned = len(allocator.ledger.cached_blocks)
        return int(whole + pool.count_free_blocks(allocator.index) + unowned)

    @property
    def _allocator(self) -> Any:
        (allocator,) = self.cache.cache_allocators.values()
        return allocator

    # ------------------------------------------------------------------ prefill

    def _prefill_batch(self, token_budget: int, cache_budget: int) -> _Batch:
        batch: list[FutureRequestState] = []
        read = 0
        active = sorted(self.active_requests.values(), key=lambda s: self.rank(s.request_id))
        for state in active:
            if state.status is not RequestStatus.PREFILLING or token_budget == 0:
                continue
            if state.request_id not in self.active_requests:
                continue  # preempted by one before it
            if read + state.current_len() > cache_budget and batch:
                break
            chunk = min(len(state.remaining_prefill_tokens), token_budget)
            if self._grow(state, chunk):
                read += state.current_len()
                batch.append(self._start_chunk(state, chunk))
                token_budget -= chunk
        while self.waiting_requests_order and token_budget > 0:
            if len(self.active_requests) >= self.max_requests_per_batch:
                break
            state = self.waiting_requests[self.waiting_requests_order[0]]
            if read and read + len(state.initial_tokens) > cache_budget:
                break
            admitted = self._admit(state, token_budget)
            if admitted is None:
                break
            read += state.current_len()
            batch.append(admitted)
            token_budget -= admitted.query_length
        queries = sum(f.query_length for f in batch)
        return batch, False, queries, read

    def _admit(self, state: RequestState, token_budget: int) -> FutureRequestState | None:
        """Moves the first waiting request into the batch if its whole prompt fits."""
        cached = self.cache.search_prefix_match(state.request_id, state.remaining_prefill_tokens)
        total = len(state.remaining_prefill_tokens)
        needed = self._allocator.needs_new_blocks(state.request_id, cached, total - cached)
        if needed > self.free_blocks:
            self.cache.free_blocks(state.request_id)
            return None
        state.remaining_prefill_tokens = state.remaining_prefill_tokens[cached:]
        state.position_offset += cached
        chunk = min(total - cached, token_budget)
        if not self._store(state, chunk):
            raise RuntimeError("block accounting is wrong: free blocks could not be taken")
        self.waiting_requests_order.popleft()
        self.waiting_requests.pop(state.request_id)
        self.active_requests[state.request_id] = state
        state.status = RequestStatus.PREFILLING
        self.on_admit(state.request_id, cached)
        return self._start_chunk(state, chunk)

    def _start_chunk(self, state: RequestState, chunk: int) -> FutureRequestState:
        state.tokens_to_process = state.remaining_prefill_tokens[:chunk]
        state.remaining_prefill_tokens = state.remaining_prefill_tokens[chunk:]
        if not state.remaining_prefill_tokens:
            state.status = RequestStatus.DECODING
        return self._future(state, chunk)

    # ------------------------------------------------------------------ decode

    def _decode_batch(self) -> _Batch:
        batch: list[FutureRequestState] = []
        active = sorted(self.active_requests.values(), key=lambda s: self.rank(s.request_id))
        for state in active:
            if state.request_id not in self.active_requests:
                continue  # preempted by one before it
            if state.status is RequestStatus.DECODING and self._grow(state, 1):
                batch.append(self._future(state, 1))
        return batch, True, len(batch), 0

    def _future(self, state: RequestState, tokens: int) -> FutureRequestState:
        complete = self.cache.count_new_complete_blocks(state, tokens)
        return FutureRequestState(state, not state.remaining_prefill_tokens, complete, tokens)

    # ------------------------------------------------------------------ blocks

    def _grow(self, state: RequestState, tokens: int) -> bool:
        """Takes the blocks for more tokens, preempting from the end; False if it fell itself."""
        while not self._store(state, tokens):
            victim = max(self.active_requests.values(), key=lambda s: self.rank(s.request_id))
            if victim is state and len(self.active_requests) == 1:
                raise RuntimeError("the KV pool is too small for one request")
            self._preempt(victim)
            if victim is state:
                return False
        return True

    def _store(self, state: RequestState, tokens: int) -> bool:
        if self.cache.can_store_request_tokens(state, tokens):
            return True
        allocator, pool = self._allocator, self.cache.pool
        needed = allocator.needs_new_blocks(state.request_id, state.current_len(), tokens)
        missing = needed - pool.count_free_blocks(allocator.index)
        ledger = allocator.ledger
        while missing > 0 and ledger.cached_blocks:
            block = next(iter(ledger.cached_blocks))  # the one that lay unused longest
            del ledger.cached_blocks[block]
            del ledger.hash_to_block[ledger.block_to_hash.pop(block)]
            pool.free_blocks(allocator.index, [block])
            missing -= 1
        return bool(self.cache.can_store_request_tokens(state, tokens))

    def _preempt(self, state: RequestState) -> None:
        """Takes all blocks from a running request and queues it for recomputation."""
        again = state.create_equivalent_initial_request()
        state._status = RequestStatus.FINISHED
        self.finish_request(state.request_id)
        self.on_preempt(state.request_id)
        self.add_waiting_request(again)
