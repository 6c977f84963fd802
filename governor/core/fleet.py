"""Fleet view: what is known of each worker at one instant, and when that knowledge is stale.

Values only. `governor.core.pool` keeps the state that a view is taken from.
"""

from dataclasses import dataclass, field

from governor.core.headroom import EMPTY_SUMS, PROFILE_BINS, SumsView


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker (one KV pool) as its metrics and its capabilities describe it.

    An absent metric is None, which means unknown and never 0. `epoch` changes when the engine
    restarts. `us_per_token` is the measured decode time of one token of one request at the current
    batch; `bin_us` is the width of the pool's headroom bins, fixed for an epoch. `scraped_us` is
    when the metrics were read, None for never. `preemptions` is the engine's running total.
    """

    worker_id: str
    epoch: str
    models: tuple[str, ...]
    capacity_blocks: int | None
    block_size: int
    us_per_token: int
    bin_us: int
    scraped_us: int | None = None
    running: int | None = None
    waiting: int | None = None
    kv_used_blocks: int | None = None
    preemptions: int | None = None
    draining: bool = False
    features: tuple[str, ...] = ()
    max_model_len: int | None = None

    def __post_init__(self) -> None:
        if self.block_size < 1 or self.us_per_token < 1 or self.bin_us < 1:
            raise ValueError("block_size, us_per_token and bin_us must be at least 1")
        if self.capacity_blocks is not None and self.capacity_blocks < 0:
            raise ValueError("capacity_blocks must not be negative")

    def is_stale(self, now_us: int, stale_after_us: int) -> bool:
        """Whether the metrics are too old to act on. A stale worker counts as saturated."""
        return self.scraped_us is None or now_us - self.scraped_us > stale_after_us


def bin_us_for(max_model_len: int, us_per_token: int) -> int:
    """Bin width with which the ring spans the longest request: max_model_len tokens, 64 bins."""
    return max(1, -(-max_model_len * us_per_token // PROFILE_BINS))


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """A worker with everything that a decision needs to know of its pool.

    `sums` are the profiles of what runs there by our leases, `long_sums` the part of them that is
    predicted-long. `in_flight` counts our own requests on it, `waiting` the engine's waiting
    requests extrapolated to now (None: unknown). `external_blocks` is usage that our leases do not
    explain. `concurrency_limit` is set while the headroom model disagrees with the worker.
    """

    view: WorkerView
    sums: SumsView = EMPTY_SUMS
    long_sums: SumsView = EMPTY_SUMS
    in_flight: int = 0
    waiting: int | None = None
    external_blocks: int = 0
    z: float = 2.33
    sigma_c: float = 0.1
    concurrency_limit: int | None = None
    overcommitted: bool = False


@dataclass(frozen=True, slots=True)
class FleetView:
    """All workers at one instant, in the order of their ids.

    Staleness has two rules. A worker whose metrics are older than `stale_after_us` is saturated:
    nothing is placed on it while any worker for the same model is fresh. Where every worker for the
    model is stale, metrics as a whole are away: each may hold `stale_concurrency` requests of our
    own, by our own in-flight counts, still under the headroom that our own leases leave.
    """

    workers: tuple[WorkerLoad, ...] = field(default=())

    def serving(self, model: str) -> tuple[WorkerLoad, ...]:
        """Workers that serve `model`."""
        return tuple(load for load in self.workers if model in load.view.models)
