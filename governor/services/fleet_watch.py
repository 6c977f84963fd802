"""FleetWatch: joins the workers, scrapes them, and turns what they say into WorkerViews."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from governor.core.errors import UpstreamFailed
from governor.core.fleet import WorkerView, bin_us_for
from governor.core.worker_facts import WorkerInfo, WorkerScrape
from governor.ports import Clock, WorkerPort

log = logging.getLogger("governor.fleet")

# Pause after the first failed round, and the longest.
BACKOFF_S = (0.2, 2.0)
# Decode pace until one was measured: 5 ms, between a small model on a CPU and a large one on an
# accelerator. It also fixes the width of the headroom bins for the worker's epoch.
ASSUMED_US_PER_TOKEN = 5_000
# Weight of the newest scrape in the measured pace: half of what is known is 2 scrapes old.
PACE_WEIGHT = 0.3
UNKNOWN_CONTEXT_TOKENS = 32_768


@dataclass(slots=True)
class Pace:
    """Measured microseconds per output token of one request, from the inter-token histogram."""

    us_per_token: float | None = None
    _last: tuple[float, float] | None = None

    def take(self, scrape: WorkerScrape) -> None:
        """Take in one scrape; without new tokens the pace stays."""
        now, before = scrape.inter_token_s, self._last
        self._last = now
        if now is None or before is None or now[1] <= before[1]:
            return
        measured = (now[0] - before[0]) / (now[1] - before[1]) * 1e6
        if measured <= 0:
            return
        old = self.us_per_token
        self.us_per_token = measured if old is None else old + PACE_WEIGHT * (measured - old)


def view_of(
    worker_id: str, info: WorkerInfo, scrape: WorkerScrape | None, pace: Pace, now_us: int
) -> WorkerView:
    """The worker as the core sees it. Unknown stays None."""
    blocks = info.num_blocks
    if scrape is not None and scrape.num_blocks is not None:
        blocks = scrape.num_blocks
    used = scrape.kv_used_fraction if scrape is not None else None
    context = info.max_model_len or UNKNOWN_CONTEXT_TOKENS
    return WorkerView(
        worker_id=worker_id,
        epoch=info.worker_epoch,
        models=info.models,
        capacity_blocks=blocks,
        block_size=info.block_size,
        us_per_token=max(1, round(pace.us_per_token or ASSUMED_US_PER_TOKEN)),
        bin_us=bin_us_for(context, ASSUMED_US_PER_TOKEN),
        scraped_us=None if scrape is None else now_us,
        running=scrape.running if scrape is not None else None,
        waiting=None if scrape is None else _waiting(scrape),
        kv_used_blocks=None if used is None or blocks is None else round(used * blocks),
        preemptions=scrape.preemptions if scrape is not None else None,
        features=tuple(sorted(info.features)),
        max_model_len=info.max_model_len,
    )


def _waiting(scrape: WorkerScrape) -> int | None:
    """Requests that wait for memory, where the engine splits its queue by reason: one deferred by
    chunked prefill or a transfer is normal and no distress.
    Else all that wait. (vLLM's `num_requests_waiting_by_reason`: capacity, deferred.)"""
    return scrape.waiting if scrape.waiting_capacity is None else scrape.waiting_capacity


@dataclass(slots=True)
class _Watched:
    """What is known of one worker between two rounds. `info` is None until it has joined, and
    after a failed round."""

    poke: asyncio.Event = field(default_factory=asyncio.Event)
    info: WorkerInfo | None = None
    epoch: str = ""
    pace: Pace = field(default_factory=Pace)
    failures: int = 0


class FleetWatch:
    """One task per worker. A failed round is told, and lets the last view go stale by itself."""

    def __init__(
        self,
        workers: Mapping[str, WorkerPort],
        clock: Clock,
        *,
        on_info: Callable[[str, WorkerInfo], None],
        on_view: Callable[[WorkerView], Awaitable[None]],
        on_error: Callable[[str, str], None],
        interval_s: float,
        backoff_s: tuple[float, float] = BACKOFF_S,
    ) -> None:
        self._workers = workers
        self._clock = clock
        self._on_info = on_info
        self._on_view = on_view
        self._on_error = on_error
        self._interval_s = interval_s
        self._backoff_s = backoff_s
        self._tasks: list[asyncio.Task[None]] = []
        self._watched = {name: _Watched() for name in workers}

    def start(self) -> None:
        """Start watching."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._watch(name)) for name in self._workers]

    def poke(self, worker_id: str) -> None:
        """Scrape this worker now: something suggests that it changed."""
        self._watched[worker_id].poke.set()

    async def close(self) -> None:
        """Stop watching."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _watch(self, worker_id: str) -> None:
        watched = self._watched[worker_id]
        while True:
            try:
                await self._round(worker_id, watched)
                watched.failures = 0
            except UpstreamFailed as error:
                self._failed(worker_id, watched, str(error))
            except Exception as error:
                log.exception("watching %s failed", worker_id)
                self._failed(worker_id, watched, repr(error))
            await self._pause(watched)

    def _failed(self, worker_id: str, watched: _Watched, detail: str) -> None:
        watched.failures += 1
        watched.info = None
        self._on_error(worker_id, detail)

    async def _round(self, worker_id: str, watched: _Watched) -> None:
        """Ask who the worker is, then how it is. Another epoch means another process, whose pace
        is not known yet; a worker that only was away keeps its pace."""
        worker = self._workers[worker_id]
        info = await worker.join()
        if info.worker_epoch != watched.epoch:
            if watched.epoch:
                log.warning("worker %s restarted", worker_id)
            watched.epoch, watched.pace = info.worker_epoch, Pace()
        if info != watched.info:
            watched.info = info
            self._on_info(worker_id, info)
        scrape = await worker.scrape()
        watched.pace.take(scrape)
        now_us = self._clock.now_us()
        await self._on_view(view_of(worker_id, info, scrape, watched.pace, now_us))

    async def _pause(self, watched: _Watched) -> None:
        seconds = self._interval_s
        if watched.failures:
            first_s, longest_s = self._backoff_s
            seconds = min(longest_s, first_s * 2.0 ** min(watched.failures - 1, 16))
        try:
            async with asyncio.timeout(seconds):
                await watched.poke.wait()
        except TimeoutError:
            pass
        watched.poke.clear()
