"""Views: what the local routes show of a running gateway. Reads; changes nothing but landings."""

from collections.abc import AsyncIterator
from typing import Any

from governor.adapters import metric_names as names
from governor.core.errors import RequestInvalid
from governor.core.outcomes import WrapUpReason
from governor.gateway.callers import tenant_of
from governor.gateway.request import LiveRequest
from governor.gateway.wiring import Runtime


class RuntimeView:
    """See `governor.gateway.app.GatewayView`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def readiness(self) -> tuple[bool, dict[str, Any]]:
        """Ready when at least one worker is joined. Policy problems show, and do not unready."""
        runtime = self._runtime
        workers = {
            name: {
                "joined": worker.info is not None,
                "fresh": self._fresh(name),
                "signals": worker.signals_alive,
                "error": worker.last_error,
            }
            for name, worker in runtime.workers.items()
        }
        ready = any(state["joined"] for state in workers.values())
        return ready, {
            "ready": ready,
            "workers": workers,
            "policy": {
                "hash": runtime.policies.policy.policy_hash,
                "file": str(runtime.policies.path),
                "problems": [str(problem) for problem in runtime.policies.problems],
                "warnings": [str(problem) for problem in runtime.policies.warnings],
            },
            "admission": runtime.settings.admission,
            "waiting": runtime.dispatcher.scheduler.waiting,
            "in_flight": runtime.dispatcher.scheduler.in_flight,
        }

    def _fresh(self, worker_id: str) -> bool:
        pool = self._runtime.dispatcher.scheduler.pools.get(worker_id)
        now_us = self._runtime.gateway.now_us()
        return pool is not None and not pool.view.is_stale(
            now_us, self._runtime.dispatcher.stale_after_us
        )

    def metrics_text(self) -> bytes:
        """Gauges are read at this moment."""
        runtime, metrics = self._runtime, self._runtime.metrics
        scheduler = runtime.dispatcher.scheduler
        metrics.set(names.LEASES_ACTIVE, runtime.dispatcher.open_leases)
        metrics.set(names.REQUESTS_WAITING, scheduler.waiting)
        metrics.set(names.STREAMS_OPEN, len(runtime.gateway.live))
        now_us = runtime.gateway.now_us()
        for name, worker in runtime.workers.items():
            metrics.set(names.WORKER_FRESH, self._fresh(name), worker=name)
            metrics.set(names.WORKER_SIGNALS, worker.signals_alive, worker=name)
            pool = scheduler.pools.get(name)
            if pool is None:
                continue
            load = pool.load(now_us, runtime.dispatcher.stale_after_us)
            if load.view.capacity_blocks is not None:
                metrics.set(names.WORKER_CAPACITY, load.view.capacity_blocks, worker=name)
            metrics.set(names.WORKER_FORECAST, max(load.sums.mean) / 1000, worker=name)
            metrics.set(names.WORKER_US_PER_TOKEN, load.view.us_per_token, worker=name)
            metrics.set(names.WORKER_PRICE, pool.price.value, worker=name)
        return metrics.text()

    def models(self) -> list[dict[str, Any]]:
        """The workers' own cards, each model once."""
        cards: dict[str, dict[str, Any]] = {}
        for worker in self._runtime.workers.values():
            for card in worker.info.model_cards if worker.info is not None else ():
                cards.setdefault(card["id"], card)
        return list(cards.values())

    def capabilities(self) -> dict[str, Any]:
        """Per worker: models and features; None where a worker was not joined yet."""
        return {
            "workers": {
                name: None
                if worker.info is None
                else {
                    "models": list(worker.info.models),
                    "features": sorted(worker.info.features),
                    "epoch": worker.info.worker_epoch,
                    "signals": worker.signals_alive,
                    "budget_paths": _paths(worker.info.features),
                }
                for name, worker in self._runtime.workers.items()
            }
        }

    def explain(self, decision_id: str, tenant: str) -> dict[str, Any] | None:
        """A decision's record and outcome, with what still runs; None where it is another's."""
        found = self._runtime.gateway.parts.recorder.find(decision_id)
        if found is not None and _owner(found) != tenant:
            return None
        request = self._running(decision_id, tenant)
        if request is not None:
            found = found or {"decision_id": decision_id, "record": None, "outcome": None}
            state = request.relay.machine.session.state.value if request.relay else "queued"
            found["running"] = {"state": state, "queue_position": request.queue_position}
        return found

    def land(self, decision_id: str, tenant: str) -> str | None:
        """An operator's landing."""
        request = self._running(decision_id, tenant)
        return None if request is None else request.land(WrapUpReason.OPERATOR)

    def _running(self, decision_id: str, tenant: str) -> LiveRequest | None:
        request = self._runtime.gateway.live.get(decision_id)
        return request if request is not None and request.policy.tenant == tenant else None

    def signals(self, decision_id: str, tenant: str) -> AsyncIterator[bytes] | None:
        """Signal rows of a running request as NDJSON; None when it does not run."""
        if self._running(decision_id, tenant) is None:
            return None
        return self._runtime.gateway.watchers.lines(decision_id)

    def tenant_of(self, headers: dict[str, str]) -> str | None:
        """The caller's tenant; None when its key is not accepted."""
        parts = self._runtime.gateway.parts
        try:
            return tenant_of(headers, parts.policies(), parts.clock.wall_s())
        except RequestInvalid:
            return None


def _owner(found: dict[str, Any]) -> str | None:
    """The tenant of a kept decision."""
    record, outcome = found["record"], found["outcome"]
    owner = record["demand"]["tenant"] if record is not None else (outcome or {}).get("tenant")
    return owner if isinstance(owner, str) else None


def _paths(features: frozenset[str]) -> list[str]:
    paths = ["native"] if "thinking_token_budget" in features else []
    return paths + (["control"] if "land" in features else [])
