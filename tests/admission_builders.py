"""Builders of the values that admission tests start from. One worker: 100 blocks of 16 tokens, one
token each millisecond, 10 ms bins of 10 tokens."""

import math
from dataclasses import replace
from typing import Any

from governor.core.demand import Demand
from governor.core.dispatch import Arrived
from governor.core.fleet import FleetView, WorkerLoad, WorkerView
from governor.core.forecast import FORECAST_SCHEMA, GRID_TOKENS, Forecast, Survival
from governor.core.headroom import PoolSums, Profile, profile
from governor.core.lease import LeaseRequest, Settlement
from governor.core.outcomes import Cause, Priority
from governor.core.policy import TenantPolicy

MODEL = "m"
SECOND = 1_000_000


def view(worker_id: str = "w0", **changes: Any) -> WorkerView:
    base = WorkerView(
        worker_id=worker_id,
        epoch="e1",
        models=(MODEL,),
        capacity_blocks=100,
        block_size=16,
        us_per_token=1_000,
        bin_us=10_000,
        scraped_us=0,
        running=0,
        waiting=0,
        kv_used_blocks=0,
        preemptions=0,
        max_model_len=640,
    )
    return replace(base, **changes)


def log_normal(median_tokens: float, sigma: float = 0.8) -> Survival:
    scale = sigma * math.sqrt(2.0)
    middle = math.log(median_tokens)
    return Survival(tuple(math.erfc((math.log(t) - middle) / scale) / 2 for t in GRID_TOKENS))


def exactly(tokens: int) -> Survival:
    """A length that is nearly certain: full survival up to the limit."""
    return Survival(tuple(1.0 for _ in GRID_TOKENS), tokens)


def forecast(thinking_tokens: float = 100, answer_tokens: float = 20) -> Forecast:
    return Forecast(
        FORECAST_SCHEMA, "test", log_normal(thinking_tokens), log_normal(answer_tokens), 0.0, False
    )


def demand(name: str = "d", **changes: Any) -> Demand:
    base = Demand(
        decision_id=name,
        tenant="default",
        model=MODEL,
        arrived_us=0,
        prompt_tokens=64,
        max_completion_tokens=200,
        priority=Priority.NORMAL,
    )
    return replace(base, **changes)


def arrived(
    name: str,
    *,
    policy: TenantPolicy | None = None,
    thinking_tokens: float = 100,
    enforce: bool = True,
    **changes: Any,
) -> Arrived:
    tenant = changes.get("tenant", "default")
    return Arrived(
        request_id=name,
        demand=demand(name, **changes),
        forecast=forecast(thinking_tokens),
        policy=policy or TenantPolicy(tenant=tenant),
        draw=0.5,
        unlanded_draw=0.5,
        wrap_up_tokens=4,
        enforce=enforce,
    )


def running_profile(tokens: int = 160, now_us: int = 0, prompt_tokens: int = 0) -> Profile:
    return profile(prompt_tokens, exactly(tokens), 0, 16, 1_000, 10_000, now_us)


def loaded(blocks: int, worker_id: str = "w0", **changes: Any) -> WorkerLoad:
    """A worker on which one request is sure to hold `blocks` blocks for the whole window."""
    sums = PoolSums()
    sums.add(Profile(0, (1000 * blocks,) * 64, (0,) * 64))
    base = WorkerLoad(view(worker_id), sums=sums.view(), in_flight=1, waiting=0)
    return replace(base, **changes)


def fleet(*loads: WorkerLoad) -> FleetView:
    return FleetView(loads or (WorkerLoad(view()),))


def lease_request(name: str = "r", **changes: Any) -> LeaseRequest:
    base = LeaseRequest(
        request_id=name,
        attempt=0,
        worker_id="w0",
        worker_epoch="e1",
        profile=running_profile(),
        area_charged=10,
        forecast_version="test",
        ttl_us=SECOND,
        limit_milliblocks=100_000,
        z=1.645,
        sigma_c=0.1,
    )
    return replace(base, **changes)


def settlement(area: int = 10, cause: Cause = Cause.COMPLETED) -> Settlement:
    return Settlement(prompt_tokens=5, reasoning_tokens=2, answer_tokens=1, area=area, cause=cause)
