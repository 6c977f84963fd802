"""FleetWatch: joins, views, restarts, failures, pace."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from governor.core.errors import UpstreamConnectFailed, UpstreamReadFailed
from governor.core.fleet import WorkerView
from governor.core.worker_facts import WorkerInfo, WorkerScrape
from governor.services.fleet_watch import FleetWatch, Pace, view_of
from tests.fake_worker import until
from tests.fakes import FakeClock, FakeWorkerPort

INFO = WorkerInfo("e1", ("m",), features=frozenset({"land"}), num_blocks=512, max_model_len=4096)


class Told:
    """What the watch told."""

    def __init__(self) -> None:
        self.infos: list[tuple[str, WorkerInfo]] = []
        self.views: list[WorkerView] = []
        self.errors: list[tuple[str, str]] = []
        self.broken: Exception | None = None

    async def view(self, view: WorkerView) -> None:
        if self.broken is not None:
            raise self.broken
        self.views.append(view)


@asynccontextmanager
async def watching(
    *ports: FakeWorkerPort, interval_s: float = 0.001, backoff_s: tuple[float, float] = (1e-3, 2e-3)
) -> AsyncIterator[tuple[FleetWatch, Told, FakeClock]]:
    told, clock = Told(), FakeClock()
    watch = FleetWatch(
        {f"w{number}": port for number, port in enumerate(ports)},
        clock,
        on_info=lambda name, info: told.infos.append((name, info)),
        on_view=told.view,
        on_error=lambda name, detail: told.errors.append((name, detail)),
        interval_s=interval_s,
        backoff_s=backoff_s,
    )
    watch.start()
    try:
        yield watch, told, clock
    finally:
        await watch.close()


async def test_each_worker_is_joined_once_and_scraped_again_and_again() -> None:
    one, other = FakeWorkerPort(INFO), FakeWorkerPort(replace(INFO, models=("n",)))
    one.metrics = WorkerScrape(running=3, waiting=1, kv_used_fraction=0.5, preemptions=7)
    async with watching(one, other) as (_, told, clock):
        clock.at_us = 5_000
        await until(lambda: one.scrapes >= 3 and other.scrapes >= 3)
        assert sorted(name for name, _ in told.infos) == ["w0", "w1"]
        view = next(view for view in told.views if view.worker_id == "w0")
        assert (view.running, view.waiting, view.kv_used_blocks) == (3, 1, 256)
        assert (view.capacity_blocks, view.preemptions, view.epoch) == (512, 7, "e1")
        assert view.scraped_us == 5_000
        assert told.errors == []


async def test_a_restarted_worker_has_another_epoch_and_no_measured_pace() -> None:
    port = FakeWorkerPort(INFO, WorkerScrape(inter_token_s=(1.0, 100.0)))
    async with watching(port) as (_, told, _clock):
        await until(lambda: told.views)
        unmeasured = told.views[0].us_per_token
        port.metrics = WorkerScrape(inter_token_s=(2.0, 200.0))
        await until(lambda: told.views[-1].us_per_token == 10_000)
        port.info = replace(INFO, worker_epoch="e2")
        port.metrics = WorkerScrape(inter_token_s=(0.0, 0.0))
        await until(lambda: told.views[-1].epoch == "e2")
        assert [info.worker_epoch for _, info in told.infos] == ["e1", "e2"]
        assert told.views[-1].us_per_token == unmeasured


async def test_changed_capabilities_are_told_without_a_restart() -> None:
    port = FakeWorkerPort(INFO)
    async with watching(port) as (_, told, _clock):
        await until(lambda: told.views)
        port.info = replace(INFO, models=("m", "lora"))
        await until(lambda: len(told.infos) == 2)
        await until(lambda: told.views[-1].models == ("m", "lora"))


async def test_a_failed_scrape_is_told_and_gives_no_view() -> None:
    port = FakeWorkerPort(INFO, UpstreamReadFailed("reset"))
    async with watching(port) as (_, told, _clock):
        await until(lambda: len(told.errors) >= 2)
        assert told.views == []
        assert told.errors[0] == ("w0", "reset")
        port.metrics = WorkerScrape(running=1)
        await until(lambda: told.views)


async def test_a_worker_that_is_away_is_waited_for_and_keeps_its_pace() -> None:
    port = FakeWorkerPort(INFO, WorkerScrape(inter_token_s=(1.0, 100.0)))
    async with watching(port) as (_, told, _clock):
        await until(lambda: told.views)
        port.metrics = WorkerScrape(inter_token_s=(3.0, 200.0))
        await until(lambda: told.views[-1].us_per_token == 20_000)
        port.info = UpstreamConnectFailed("refused")
        await until(lambda: len(told.errors) >= 3)
        seen = len(told.views)
        port.info = INFO
        await until(lambda: len(told.views) > seen)
        assert told.views[-1].us_per_token == 20_000
        assert [name for name, _ in told.infos] == ["w0", "w0"], "joined again after the failure"


@pytest.mark.parametrize("broken", ["join", "view"])
async def test_a_fault_of_ours_is_told_and_does_not_end_the_watch(
    broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    port = FakeWorkerPort(INFO)
    async with watching(port) as (_, told, _clock):
        await until(lambda: told.views)
        if broken == "join":
            port.info = KeyError("odd")
        else:
            told.broken = KeyError("odd")
        await until(lambda: told.errors)
        port.info, told.broken = INFO, None
        seen = len(told.views)
        await until(lambda: len(told.views) > seen)
        assert "odd" in told.errors[0][1]
        assert "watching w0 failed" in caplog.text


async def test_a_poke_scrapes_at_once() -> None:
    port = FakeWorkerPort(INFO)
    async with watching(port, interval_s=3_600) as (watch, told, _clock):
        await until(lambda: len(told.views) == 1)
        watch.poke("w0")
        await until(lambda: len(told.views) == 2)


async def test_failures_are_retried_ever_more_slowly_up_to_a_bound() -> None:
    port = FakeWorkerPort(UpstreamConnectFailed("refused"))
    times: list[float] = []
    async with watching(port, interval_s=3_600, backoff_s=(0.004, 0.016)) as (_, told, _clock):
        told.errors = _Clocked(times, asyncio.get_running_loop().time)
        # Doubling without a bound, these would take 16 s.
        await until(lambda: len(times) >= 13)
    gaps = [after - before for before, after in itertools.pairwise(times)]
    least = [0.004, 0.008, *[0.016] * 10]
    assert all(gap >= 0.95 * bound for gap, bound in zip(gaps, least, strict=False))


class _Clocked(list[Any]):
    """A list that notes when something is added."""

    def __init__(self, times: list[float], now: Callable[[], float]) -> None:
        super().__init__()
        self._times, self._now = times, now

    def append(self, item: Any) -> None:
        self._times.append(self._now())
        super().append(item)


async def test_after_close_nothing_is_asked_any_more() -> None:
    port = FakeWorkerPort(INFO)
    async with watching(port) as (_, told, _clock):
        await until(lambda: told.views)
    asked = port.joins
    for _ in range(5):
        await asyncio.sleep(0.001)
    assert port.joins == asked


def test_pace_is_measured_between_two_scrapes_and_kept_without_tokens() -> None:
    pace = Pace()
    pace.take(WorkerScrape(inter_token_s=(10.0, 1_000.0)))
    assert pace.us_per_token is None, "an average since the start says nothing of the present"
    pace.take(WorkerScrape(inter_token_s=(12.0, 1_100.0)))
    assert pace.us_per_token == pytest.approx(20_000)
    pace.take(WorkerScrape(inter_token_s=(12.0, 1_100.0)))
    pace.take(WorkerScrape())
    pace.take(WorkerScrape(inter_token_s=(13.0, 1_200.0)))
    assert pace.us_per_token == pytest.approx(20_000)
    pace.take(WorkerScrape(inter_token_s=(14.0, 1_300.0)))
    assert pace.us_per_token == pytest.approx(20_000 - 0.3 * 10_000)


def test_counters_that_go_backwards_are_no_pace() -> None:
    pace = Pace()
    for figures in ((10.0, 1_000.0), (0.1, 10.0), (0.1, 20.0)):
        pace.take(WorkerScrape(inter_token_s=figures))
    assert pace.us_per_token is None


def test_what_a_worker_does_not_say_stays_unknown_in_its_view() -> None:
    view = view_of("w", WorkerInfo("e", ("m",)), WorkerScrape(), Pace(), 9)
    assert (view.capacity_blocks, view.running, view.waiting) == (None, None, None)
    assert (view.kv_used_blocks, view.preemptions, view.scraped_us) == (None, None, 9)
    never = view_of("w", INFO, None, Pace(), 9)
    assert never.scraped_us is None
    assert never.capacity_blocks == 512


def test_the_size_of_the_pool_is_the_metrics_where_they_say_it() -> None:
    scrape = WorkerScrape(num_blocks=100, kv_used_fraction=0.256)
    view = view_of("w", INFO, scrape, Pace(), 0)
    assert (view.capacity_blocks, view.kv_used_blocks) == (100, 26)


def test_only_those_that_wait_for_memory_count_where_the_engine_tells_them_apart() -> None:
    split = WorkerScrape(waiting=5, waiting_capacity=2)
    assert view_of("w", INFO, split, Pace(), 0).waiting == 2
    assert view_of("w", INFO, WorkerScrape(waiting=5), Pace(), 0).waiting == 5
    assert view_of("w", INFO, WorkerScrape(), Pace(), 0).waiting is None
