"""Relief: how hard waiting requests press on a pool, and whose thinking to land for them."""

from collections.abc import Iterable, Mapping

from governor.core.pool import Pool
from governor.core.price import PriceSettings
from governor.core.request import GovernedRequest, RequestState
from governor.core.units import us_from_s


def pressure_on(
    worker_id: str, blocked: Iterable[GovernedRequest], settings: PriceSettings, now_us: int
) -> float:
    """The largest predicted peak share of the pool with one of the `blocked` requests on it.

    It counts in full once a request has used up half of the time that it may wait: before anybody
    is shed, but not for a queue that moves. Until then it holds the price where it is.
    """
    pressure = 0.0
    for request in blocked:
        if request.judged is None or request.state is not RequestState.QUEUED:
            continue
        half_us = us_from_s(request.arrived.policy.queue.ttl_s) // 2
        urgent = now_us - request.since_us >= half_us
        for candidate in request.judged.decision.candidates:
            if candidate.load.view.worker_id == worker_id:
                share = candidate.share
                pressure = max(pressure, share if urgent else min(share, settings.high))
    return pressure


def least_valuable(pool: Pool, requests: Mapping[str, GovernedRequest]) -> GovernedRequest | None:
    """The running thinker of least marginal value among those that may be landed, None without one.

    The lowest band first, then whoever is still to hold the most KV: value per token is not known
    here, so it counts as equal, and the most expensive remainder has the least value per area.
    """
    running = (requests.get(name) for name in pool.holds)
    return max(
        (request for request in running if request is not None and request.landable),
        key=lambda request: (
            request.arrived.demand.priority,
            sum(pool.holds[request.arrived.request_id].profile.mean_milliblocks),
            request.seq,
        ),
        default=None,
    )
