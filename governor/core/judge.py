"""Judge: put one request before admission, with this moment's grant, and keep what was said."""

from collections.abc import Mapping

from governor.core.accounts import TenantAccounts
from governor.core.admission import AdmissionSettings, decide
from governor.core.dispatch import Judged
from governor.core.fleet import FleetView
from governor.core.pool import Pool
from governor.core.record import GrantInputs
from governor.core.request import GovernedRequest


def fleet_of(
    pools: Mapping[str, Pool], now_us: int, settings: AdmissionSettings, model: str | None = None
) -> FleetView:
    """The pools as a value, in the order of their ids; only those for `model`, where given."""
    stale_after_us = settings.placement.stale_after_us
    return FleetView(
        tuple(
            pools[name].load(now_us, stale_after_us)
            for name in sorted(pools)
            if model is None or model in pools[name].view.models
        )
    )


def judge(
    request: GovernedRequest,
    pools: Mapping[str, Pool],
    accounts: TenantAccounts,
    settings: AdmissionSettings,
    now_us: int,
    excluded: frozenset[str],
) -> Judged:
    """What admission says of a request at this moment's price; also noted on the request."""
    arrived = request.arrived
    fleet = fleet_of(pools, now_us, settings, arrived.demand.model)
    inputs = _grant_inputs(request, fleet, pools, now_us)
    grant, footprint = request.fit(inputs)
    names = {load.view.worker_id for load in fleet.workers}
    excluded |= arrived.excluded
    if names <= excluded:
        excluded -= arrived.excluded  # nobody else is left: a worker that failed is better
    decision = decide(
        arrived.demand,
        grant,
        arrived.forecast,
        arrived.policy,
        fleet,
        accounts.usage(arrived.demand.tenant, arrived.policy, now_us),
        now_us,
        arrived.draw,
        settings,
        footprint=footprint,
        preferred_worker=arrived.preferred_worker,
        excluded=excluded,
    )
    request.judged = Judged(
        decision=decision,
        demand=arrived.demand,
        policy=arrived.policy,
        forecast=arrived.forecast,
        grant_inputs=request.grant_inputs or inputs,
        grant=grant,
        fleet=fleet,
        preferred_worker=arrived.preferred_worker,
        excluded=excluded,
    )
    request.why = decision.reason
    return request.judged


def _grant_inputs(
    request: GovernedRequest, fleet: FleetView, pools: Mapping[str, Pool], now_us: int
) -> GrantInputs:
    """The grant must hold on whichever worker is picked: the shortest context, the slowest pace.

    The price is that of the cheapest pool, which is where the request will go.
    """
    views = [load.view for load in fleet.workers]
    lengths = [view.max_model_len for view in views if view.max_model_len is not None]
    return GrantInputs(
        wrap_up_tokens=request.arrived.wrap_up_tokens,
        max_model_len=min(lengths, default=None),
        us_per_token=max((view.us_per_token for view in views), default=None),
        price=min((pools[view.worker_id].price.value for view in views), default=0.0),
        now_us=now_us,
        unlanded_draw=request.arrived.unlanded_draw,
    )


def retry_after_us(judged: Judged | None, queued_area: int, settings: AdmissionSettings) -> int:
    """Predicted drain, plus the time in which the pools work off what waits.

    That is area over blocks and pace, from the stability rate M / (b·E[g]) of arXiv 2605.04595.
    """
    wait_us = settings.retry_least_us
    if judged is not None:
        wait_us = max(wait_us, judged.decision.retry_after_us or 0)
        views = [load.view for load in judged.fleet.workers]
        # Token² that the pools work off each microsecond.
        rate = sum((v.capacity_blocks or 0) * v.block_size / v.us_per_token for v in views)
        if rate > 0.0:
            wait_us += int(queued_area / rate)
    return min(wait_us, settings.retry_most_us)
