"""Placement: which worker takes a request. Filter, score, pick; changes nothing."""

from collections.abc import Callable
from dataclasses import dataclass

from governor.core.fleet import WorkerLoad, WorkerView
from governor.core.headroom import Profile, peak
from governor.core.outcomes import Priority, Reason
from governor.core.units import blocks_for

# What each band may fill of a pool, in thousandths. Reserving capacity for the bands above before a
# pool is full is asked for in gateway-api-inference-extension issue 2265; the numbers are ours: a
# critical request must find room that normal work leaves, and batch work must leave a fifth.
BAND_LIMIT_PERMILLE: tuple[tuple[Priority, int], ...] = (
    (Priority.CRITICAL, 1000),
    (Priority.HIGH, 1000),
    (Priority.NORMAL, 980),
    (Priority.LOW, 900),
    (Priority.BATCH, 800),
)


@dataclass(frozen=True, slots=True)
class PlacementSettings:
    """What a worker must satisfy to be given work.

    A worker with more than `shallow_waiting` of its own waiting requests gets none: work waits in
    the gateway, where it can be reordered and its owner can leave. `affinity_slack` is how much
    fuller (as a share of its limit) a preferred worker may be and still be picked.
    """

    stale_after_us: int = 3_000_000
    stale_concurrency: int = 4
    shallow_waiting: int = 2
    band_limit_permille: tuple[tuple[Priority, int], ...] = BAND_LIMIT_PERMILLE
    affinity_slack: float = 0.1

    def permille(self, priority: Priority) -> int:
        """The band's limit; 1000 for a band that is not listed."""
        return dict(self.band_limit_permille).get(priority, 1000)


@dataclass(frozen=True, slots=True)
class Ask:
    """What placement needs to know of one request. `profile_on` gives its profile on a worker."""

    prompt_tokens: int
    priority: Priority
    long_on: Callable[[WorkerView], bool]
    long_task_share: float
    profile_on: Callable[[WorkerView], Profile]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker as it was examined for one request: the verdict and all that it rests on.

    `peak_milliblocks` and `limit_milliblocks` are None where the worker was ruled out before its
    headroom mattered, or where its capacity is unknown.
    """

    load: WorkerLoad
    reason: Reason
    peak_milliblocks: int | None = None
    limit_milliblocks: int | None = None
    long: bool = False

    @property
    def fits(self) -> bool:
        """Whether the request may go there."""
        return self.reason is Reason.FITS

    @property
    def share(self) -> float:
        """Predicted peak over limit; own in-flight count where the pool is not known in blocks."""
        if self.peak_milliblocks is None or not self.limit_milliblocks:
            return float(self.load.in_flight)
        return self.peak_milliblocks / self.limit_milliblocks


def examine(
    load: WorkerLoad, ask: Ask, settings: PlacementSettings, now_us: int, *, all_stale: bool
) -> Candidate:
    """Filter and score one worker. `all_stale`: no worker for the model has fresh metrics."""
    view = load.view
    if view.draining:
        return Candidate(load, Reason.DRAINING)
    if _never_fits(view, ask.prompt_tokens):
        return Candidate(load, Reason.NEVER_FITS)
    stale = view.is_stale(now_us, settings.stale_after_us)
    if stale and not all_stale:
        return Candidate(load, Reason.FLEET_STALE)
    blind = all_stale or view.capacity_blocks is None
    if blind and load.concurrency_limit is None and load.in_flight >= settings.stale_concurrency:
        return Candidate(load, Reason.FLEET_STALE if stale else Reason.NO_HEADROOM)
    if view.capacity_blocks is None:
        return Candidate(load, _limited(load, settings))
    return _fit_in_blocks(load, ask, settings, view.capacity_blocks)


def _never_fits(view: WorkerView, prompt_tokens: int) -> bool:
    """Whether the pool or the model length cannot even hold the prompt and one token."""
    if view.max_model_len is not None and prompt_tokens >= view.max_model_len:
        return True
    need_blocks = blocks_for(prompt_tokens + 1, view.block_size)
    return view.capacity_blocks is not None and need_blocks > view.capacity_blocks


def _limited(load: WorkerLoad, settings: PlacementSettings) -> Reason:
    """The rules that need no headroom: overcommit mark, engine queue, concurrency limit."""
    if load.overcommitted:
        return Reason.NO_HEADROOM
    if load.waiting is not None and load.waiting > settings.shallow_waiting:
        return Reason.NO_HEADROOM
    if load.concurrency_limit is not None and load.in_flight >= load.concurrency_limit:
        return Reason.NO_HEADROOM
    return Reason.FITS


def _fit_in_blocks(
    load: WorkerLoad, ask: Ask, settings: PlacementSettings, capacity_blocks: int
) -> Candidate:
    profile = ask.profile_on(load.view)
    long = ask.long_on(load.view)
    free_blocks = max(0, capacity_blocks - load.external_blocks)
    idle = load.in_flight == 0 and load.sums.count == 0
    # An idle pool takes whatever it can hold at all, else a request with a long tail in a small
    # pool, or a band with a low limit, would wait for ever.
    limit = free_blocks * (1000 if idle else settings.permille(ask.priority))
    highest = peak(load.sums, profile, load.z, load.sigma_c)
    reason = _limited(load, settings)
    if reason is Reason.FITS and long and not _within_long_share(load, ask, profile, free_blocks):
        reason = Reason.LONG_TASK_SHARE
    if reason is Reason.FITS and highest > limit:
        first_blocks = blocks_for(ask.prompt_tokens + 1, load.view.block_size)
        if idle and first_blocks <= free_blocks:
            limit = highest
        else:
            reason = Reason.NO_HEADROOM
    return Candidate(load, reason, highest, limit, long)


def _within_long_share(load: WorkerLoad, ask: Ask, profile: Profile, blocks: int) -> bool:
    """Whether predicted-long work stays within its share of the pool; one of it may always run."""
    if load.long_sums.count == 0:
        return True
    share = int(ask.long_task_share * 1000 * blocks)
    return peak(load.long_sums, profile, 0.0, 0.0) <= share


def pick(
    candidates: tuple[Candidate, ...], draw: float, *, preferred: str | None, slack: float
) -> Candidate | None:
    """The fitting candidate with the lowest predicted peak share; equal ones by `draw` in [0, 1).

    The preferred worker (prefix affinity) wins while it is fuller than that by at most `slack`.
    """
    fitting = sorted((c for c in candidates if c.fits), key=lambda c: c.load.view.worker_id)
    if not fitting:
        return None
    lowest = min(candidate.share for candidate in fitting)
    for candidate in fitting:
        if candidate.load.view.worker_id == preferred and candidate.share <= lowest + slack:
            return candidate
    ties = [candidate for candidate in fitting if candidate.share == lowest]
    return ties[min(int(draw * len(ties)), len(ties) - 1)]
