"""Wiring: the composition root of one gateway process. The only place where parts meet."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from governor.adapters import metric_names as names
from governor.adapters.clock_system import SystemClock
from governor.adapters.ledger_memory import MemoryLedger
from governor.adapters.metrics_prometheus import PrometheusMetrics
from governor.adapters.policies_watch import PolicyStore, ReloadOutcome, ReloadResult
from governor.adapters.recorder_memory import MemoryRecorder
from governor.adapters.signals_http import SignalSubscriber
from governor.adapters.worker_client import WorkerClient
from governor.core.dispatch import SchedulerSettings
from governor.core.estimator import RunningEstimator
from governor.core.fleet import WorkerView
from governor.core.scheduler import Scheduler
from governor.core.units import us_from_s
from governor.core.worker_facts import WorkerInfo
from governor.gateway.gateway import Gateway, GatewayParts
from governor.gateway.settings import Settings
from governor.gateway.workers import Worker, worker_at
from governor.services.dispatch import Dispatcher
from governor.services.fleet_watch import FleetWatch

log = logging.getLogger("governor.wiring")

EXPIRE_EVERY_S = 5.0


def code_version() -> str:
    """The installed version, for decision records."""
    try:
        return version("governor-gateway")
    except PackageNotFoundError:
        return "unknown"


@dataclass(slots=True)
class Runtime:
    """A composed gateway with its background work. `start` and `stop` it once."""

    settings: Settings
    gateway: Gateway
    dispatcher: Dispatcher
    policies: PolicyStore
    metrics: PrometheusMetrics
    workers: dict[str, Worker]
    clients: dict[str, WorkerClient]
    watch: FleetWatch | None = None
    _policy_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _feeds: dict[str, tuple[SignalSubscriber, asyncio.Task[None]]] = field(default_factory=dict)

    def start(self) -> None:
        """Start watching the fleet and the policy file."""
        self.watch = FleetWatch(
            self.clients,
            self.gateway.parts.clock,
            on_info=self._joined,
            on_view=self._seen,
            on_error=self._worker_error,
            interval_s=self.settings.scrape_interval_s,
        )
        self.gateway.parts.poke = self.watch.poke
        self.watch.start()
        self._announce_policies()
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(_every(self.settings.policy_poll_s, self._check_policy)),
            loop.create_task(_every(self.settings.tick_interval_s, self._tick)),
            loop.create_task(_every(EXPIRE_EVERY_S, self.dispatcher.expire)),
        ]

    async def stop(self) -> None:
        """End what still runs with a typed error, settle, and close every connection."""
        for request in list(self.gateway.live.values()):
            request.stop("the gateway is shutting down")
        tasks = [*self._tasks, *(task for _, task in self._feeds.values())]
        for task in tasks:
            task.cancel()
        if self.watch is not None:
            await self.watch.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        for subscriber, _ in self._feeds.values():
            await subscriber.close()
        await self.dispatcher.close()
        for worker in self.workers.values():
            worker.pool.close()
        for client in self.clients.values():
            await client.close()

    async def reload_policy(self) -> ReloadResult:
        """Read the policy file again (SIGHUP)."""
        async with self._policy_lock:
            return self._took(await asyncio.to_thread(self.policies.reload))

    # -- callbacks --------------------------------------------------------------------------------

    def _joined(self, worker_id: str, info: WorkerInfo) -> None:
        worker = self.workers[worker_id]
        worker.info, worker.last_error = info, None
        log.info("worker %s joined: %s", worker_id, ", ".join(info.models))
        if "signals" in info.features and worker_id not in self._feeds:
            subscriber = SignalSubscriber(
                worker.url,
                worker.key,
                self.gateway.rows,
                lambda alive, detail: self.gateway.feed_state(worker_id, alive, detail),
            )
            task = asyncio.get_running_loop().create_task(subscriber.run())
            self._feeds[worker_id] = (subscriber, task)

    async def _seen(self, view: WorkerView) -> None:
        worker = self.workers[view.worker_id]
        worker.view, worker.last_error = view, None
        await self.dispatcher.worker_seen(view)

    def _worker_error(self, worker_id: str, detail: str) -> None:
        worker = self.workers[worker_id]
        if worker.last_error != detail:
            log.warning("worker %s: %s", worker_id, detail)
        worker.last_error = detail

    async def _tick(self) -> None:
        self.dispatcher.tick()

    async def _check_policy(self) -> None:
        # A large file takes a while to read; the store swaps the policy in one assignment.
        async with self._policy_lock:
            self._took(await asyncio.to_thread(self.policies.check))

    def _took(self, result: ReloadResult) -> ReloadResult:
        if result.outcome is ReloadOutcome.RELOADED:
            log.info("policy %s in force", result.policy_hash[7:19])
            self._announce_policies()
        elif result.outcome is ReloadOutcome.REFUSED:
            for problem in result.problems:
                log.error("policy refused: %s", problem)
        if result.outcome is not ReloadOutcome.UNCHANGED:
            self.metrics.count(names.POLICY_RELOADS, result=result.outcome)
        return result

    def _announce_policies(self) -> None:
        policy = self.policies.policy
        self.dispatcher.policies_changed(dict(policy.tenants), policy.policy_hash)


async def _every(seconds: float, call: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            await call()
        except Exception:
            log.exception("periodic work failed")


def build(settings: Settings) -> Runtime:
    """Compose a gateway. Raises PolicyFileInvalid, ValueError for settings that cannot work."""
    clock = SystemClock()
    policies = PolicyStore(settings.policy_file, clock)
    metrics = PrometheusMetrics()
    recorder = MemoryRecorder(settings.decision_ring)
    scheduler_settings = SchedulerSettings(lease_ttl_us=us_from_s(settings.lease_ttl_s))
    dispatcher = Dispatcher(
        Scheduler(scheduler_settings),
        MemoryLedger(),
        clock,
        metrics,
        recorder,
        scheduler_settings.admission,
        code_version(),
        immediate_ledger=True,
    )
    found = [worker_at(url, settings.worker_key) for url in settings.workers]
    workers = {worker.worker_id: worker for worker in found}
    if len(workers) != len(found):
        raise ValueError("workers: the same host:port is given twice")
    clients = {name: WorkerClient(w.url, w.key) for name, w in workers.items()}
    gateway = Gateway(
        GatewayParts(
            clock=clock,
            dispatcher=dispatcher,
            predictor=RunningEstimator(),
            metrics=metrics,
            recorder=recorder,
            workers=workers,
            controls=dict(clients),
            policies=lambda: policies.policy,
            families=settings.families,
            admission=settings.admission,
            seed=settings.seed,
            idle_timeout_s=settings.upstream_idle_timeout_s,
        )
    )
    return Runtime(settings, gateway, dispatcher, policies, metrics, workers, clients)
