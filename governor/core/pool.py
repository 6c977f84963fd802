"""Pool: what the scheduler knows of one worker's KV pool: sums, scrapes, what they teach.

Decides nothing; `load` is the value that decisions are made on.
"""

from dataclasses import dataclass, replace

from governor.core.fleet import WorkerLoad, WorkerView
from governor.core.headroom import PoolSums, Profile, SumsView, conditioned
from governor.core.overcommit import ConcurrencyLimit, Overcommit, OvercommitSettings
from governor.core.price import PriceController, PriceSettings
from governor.core.units import blocks_for

# Usage that our leases do not explain, from which on the model is said to disagree with the worker.
_DISAGREEMENT_SHARE = 0.1


@dataclass(slots=True)
class Hold:
    """One of our requests on the pool. `generated_tokens` were counted at `since_us`."""

    request_id: str
    profile: Profile
    long: bool
    prompt_tokens: int
    completions: int
    most_tokens: int | None
    generated_tokens: int
    since_us: int

    def blocks(self, at_us: int, block_size: int, us_per_token: int) -> int:
        """Blocks that it holds by its last count and the worker's pace."""
        tokens = self.generated_tokens + max(0, at_us - self.since_us) // us_per_token
        if self.most_tokens is not None:
            tokens = min(tokens, max(self.most_tokens, self.generated_tokens))
        return self.completions * blocks_for(self.prompt_tokens + tokens, block_size)


@dataclass(frozen=True, slots=True)
class _Cohort:
    """The requests present at one time, and what was then predicted for them."""

    members: frozenset[str]
    sums: SumsView
    due_bin: int


class Pool:
    """One worker. Between scrapes its state is extrapolated from our own requests."""

    __slots__ = (
        "_cohort",
        "_dispatched",
        "_external_blocks",
        "_load",
        "_long_sums",
        "_sums",
        "holds",
        "limit",
        "overcommit",
        "price",
        "view",
    )

    def __init__(
        self, view: WorkerView, overcommit: OvercommitSettings, price: PriceSettings
    ) -> None:
        self.view = view
        self.holds: dict[str, Hold] = {}
        self.overcommit = Overcommit(overcommit)
        self.price = PriceController(price)
        self.limit = ConcurrencyLimit()
        self._sums = PoolSums()
        self._long_sums = PoolSums()
        self._cohort: _Cohort | None = None
        self._dispatched = 0
        self._external_blocks = 0
        self._load: WorkerLoad | None = None

    def take(self, hold: Hold) -> None:
        """Count a dispatched request."""
        self._load = None
        self.holds[hold.request_id] = hold
        self._dispatched += 1
        self._sums.add(hold.profile)
        if hold.long:
            self._long_sums.add(hold.profile)

    def swap(self, request_id: str, profile: Profile, generated_tokens: int, now_us: int) -> bool:
        """A request's profile has been recomputed; False where the pool does not hold it."""
        hold = self.holds.get(request_id)
        if hold is None:
            return False
        self._load = None
        for sums in (self._sums, self._long_sums) if hold.long else (self._sums,):
            sums.remove(hold.profile)
            sums.add(profile)
        hold.profile = profile
        hold.generated_tokens, hold.since_us = generated_tokens, now_us
        return True

    def release(self, request_id: str) -> None:
        """A request has ended, or never began."""
        hold = self.holds.pop(request_id, None)
        if hold is not None:
            self._load = None
            self._sums.remove(hold.profile)
            if hold.long:
                self._long_sums.remove(hold.profile)

    def scraped(self, view: WorkerView, now_us: int) -> None:
        """Take in a worker's metrics and learn from them.

        A changed epoch means that the engine restarted: it holds nothing of ours any more. Within
        an epoch the width of the bins stays what it was.
        """
        self._load = None
        before = self.view
        if view.epoch != before.epoch:
            self.view = view
            self.holds.clear()
            self._sums, self._long_sums = PoolSums(), PoolSums()
            self._cohort, self._external_blocks, self._dispatched = None, 0, 0
            return
        self.view = view = replace(view, bin_us=before.bin_us)
        if view.scraped_us is None or view.scraped_us == before.scraped_us:
            return
        fresh_preemptions = _increase(before.preemptions, view.preemptions)
        self.overcommit.preempted(fresh_preemptions, self._dispatched)
        self._reconcile(view, fresh_preemptions)
        self._dispatched = 0
        self._learn(now_us)

    def own_blocks(self, at_us: int) -> int:
        """Blocks that our own requests hold by our count."""
        size, pace = self.view.block_size, self.view.us_per_token
        return sum(hold.blocks(at_us, size, pace) for hold in self.holds.values())

    def load(self, now_us: int, stale_after_us: int) -> WorkerLoad:
        """The pool as a value."""
        view = self.view
        current_bin = now_us // view.bin_us
        stale = view.is_stale(now_us, stale_after_us)
        before = self._load
        if (
            before is not None
            and before.view is view
            and before.sums.base_bin == current_bin
            and not (stale and before.external_blocks)
        ):
            return before
        self._sums.advance(current_bin)
        self._long_sums.advance(current_bin)
        sums = conditioned(self._sums.view())
        waiting = view.waiting
        if waiting:
            # What the engine already could not start, the requests sent since stand behind.
            waiting += self._dispatched
        capacity = view.capacity_blocks
        self._load = WorkerLoad(
            view=view,
            sums=sums,
            long_sums=conditioned(self._long_sums.view()),
            in_flight=len(self.holds),
            waiting=waiting,
            external_blocks=0 if stale else self._external_blocks,
            z=self.overcommit.z,
            sigma_c=self.overcommit.sigma_c,
            concurrency_limit=self.limit.limit,
            overcommitted=capacity is not None and sums.mean[0] > 1000 * capacity,
        )
        return self._load

    def _reconcile(self, view: WorkerView, fresh_preemptions: int) -> None:
        """Usage that our leases do not explain is external load. Where nobody else is there to
        cause it, it is our model that is wrong."""
        if view.kv_used_blocks is None or view.scraped_us is None:
            return
        in_flight = len(self.holds)
        # One block each for the token under way and for what was dispatched during the scrape.
        unexplained = view.kv_used_blocks - self.own_blocks(view.scraped_us) - in_flight
        self._external_blocks = max(0, unexplained)
        alone = view.running is not None and view.running <= in_flight
        threshold = _DISAGREEMENT_SHARE * (view.capacity_blocks or 0)
        self.limit.scraped(
            disagrees=alone and in_flight > 0 and unexplained > threshold,
            distress=fresh_preemptions > 0 or bool(view.waiting),
            in_flight=in_flight,
        )

    def _learn(self, now_us: int) -> None:
        """Compare what the remembered set of requests holds with what was predicted for it."""
        current_bin = now_us // self.view.bin_us
        cohort = self._cohort
        if cohort is not None and current_bin >= cohort.due_bin:
            index = current_bin - cohort.sums.base_bin
            if index < len(cohort.sums.mean):
                size, pace = self.view.block_size, self.view.us_per_token
                blocks = sum(
                    hold.blocks(now_us, size, pace)
                    for name, hold in self.holds.items()
                    if name in cohort.members
                )
                self.overcommit.held(1000 * blocks, cohort.sums.mean[index], cohort.sums.var[index])
            self._cohort = cohort = None
        if cohort is None and self.holds:
            self._sums.advance(current_bin)
            sums = conditioned(self._sums.view())
            # The predicted peak is where the decision was tightest.
            due_bin = sums.base_bin + max(1, sums.mean.index(max(sums.mean)))
            self._cohort = _Cohort(frozenset(self.holds), sums, due_bin)


def _increase(before: int | None, after: int | None) -> int:
    """Growth of a counter; a smaller value means that it was reset. Unknown counts as no growth."""
    if after is None or before is None:
        return 0
    return after - before if after >= before else after
