"""The ledger under any calls: no leak, settled once, never overfull without being marked."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from governor.adapters.ledger_memory import MemoryLedger
from governor.core.headroom import EMPTY_PROFILE, PoolSums, SumsView, conditioned, peak
from governor.core.lease import Lease, RefusalReason, Refused, Settled
from tests.admission_builders import lease_request, running_profile, settlement

T = TypeVar("T")
BIN_US = 10_000
LIMIT = 60_000


def run(call: Coroutine[Any, Any, T]) -> T:
    """The result of a call that awaits nothing."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(call)
    finally:
        loop.close()


class LedgerMachine(RuleBasedStateMachine):
    """One worker with room for 60 blocks. `settled` counts successful settles by lease."""

    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = MemoryLedger()
        self.now_us = 0
        self.epoch = 0
        self.count = 0
        self.forced = False
        self.renewed = False
        self.settled: dict[str, int] = {}
        self.given: set[str] = set()
        run(self.ledger.expire("w0", "e0", BIN_US, 0))

    @rule(
        target=leases,
        tokens=st.integers(1, 600),
        ttl_us=st.integers(1, 200_000),
        force=st.booleans(),
    )
    def reserve(self, tokens: int, ttl_us: int, force: bool) -> Any:
        self.count += 1
        request = lease_request(
            f"r{self.count}",
            worker_epoch=f"e{self.epoch}",
            profile=running_profile(tokens, self.now_us),
            ttl_us=ttl_us,
            limit_milliblocks=LIMIT,
            force=force,
        )
        before = run(self.ledger.sums("w0", self.now_us))
        answer = run(self.ledger.reserve(request, self.now_us))
        assert isinstance(before, SumsView)
        fits = peak(conditioned(before), request.profile, request.z, request.sigma_c) <= LIMIT
        if isinstance(answer, Refused):
            assert not force
            assert not fits or answer.reason is RefusalReason.OVERCOMMITTED
            return multiple()
        assert fits or force
        self.forced = self.forced or force
        self.given.add(answer.id)
        return answer

    @rule(lease=leases, tokens=st.integers(1, 600), ttl_us=st.integers(1, 200_000))
    def renew(self, lease: Lease, tokens: int, ttl_us: int) -> None:
        held = {known.id: known for known in self.ledger.leases()}
        current = held.get(lease.id)
        fence = current.fence if current else lease.fence
        profile = running_profile(tokens, self.now_us)
        answer = run(self.ledger.renew(lease.id, fence, profile, ttl_us, self.now_us))
        if isinstance(answer, Lease):
            self.renewed = True
            assert answer.fence == fence + 1
        elif current is not None:
            assert answer.reason is RefusalReason.EXPIRED
            assert current.expires_us <= self.now_us

    @rule(lease=leases)
    def settle(self, lease: Lease) -> None:
        held = {known.id: known for known in self.ledger.leases()}
        fence = held[lease.id].fence if lease.id in held else lease.fence
        answer = run(self.ledger.settle(lease.id, fence, settlement(), self.now_us))
        if isinstance(answer, Settled):
            self.settled[lease.id] = self.settled.get(lease.id, 0) + 1

    @rule(lease=consumes(leases))
    def confirm_abort(self, lease: Lease) -> None:
        answer = run(self.ledger.confirm_abort(lease.id, self.now_us))
        if isinstance(answer, Lease):
            assert lease.id not in self.settled

    @rule(passed_us=st.integers(0, 300_000))
    def time_passes(self, passed_us: int) -> None:
        self.now_us += passed_us

    @rule(used=st.none() | st.integers(0, 100))
    def scrape(self, used: int | None) -> None:
        epoch = f"e{self.epoch}"
        run(self.ledger.expire("w0", epoch, BIN_US, self.now_us, kv_used_blocks=used))

    @rule()
    def restart(self) -> None:
        self.epoch += 1
        run(self.ledger.expire("w0", f"e{self.epoch}", BIN_US, self.now_us))
        assert self.ledger.leases() == ()
        self.forced = self.renewed = False

    @invariant()
    def sums_are_those_of_the_leases_and_nothing_else(self) -> None:
        found = run(self.ledger.sums("w0", self.now_us))
        assert isinstance(found, SumsView)
        expected = PoolSums()
        expected.advance(found.base_bin)
        for lease in self.ledger.leases():
            # A window that has moved on counts only what of a profile is still ahead.
            expected.add(lease.profile)
        assert expected.view() == found

    @invariant()
    def never_above_the_limit_without_a_mark(self) -> None:
        found = run(self.ledger.sums("w0", self.now_us))
        assert isinstance(found, SumsView)
        if not self.forced and not self.renewed:
            own = EMPTY_PROFILE.starting(found.base_bin)
            assert peak(found, own, 1.645, 0.1) <= LIMIT
        assert self.ledger.overcommitted("w0") == (max(found.mean) > LIMIT and bool(self.given))

    @invariant()
    def nothing_is_settled_twice(self) -> None:
        assert all(times == 1 for times in self.settled.values())
        held = {lease.id for lease in self.ledger.leases()}
        assert not held & set(self.settled)

    def teardown(self) -> None:
        """After every TTL has ended twice nothing is left."""
        run(self.ledger.expire("w0", f"e{self.epoch}", BIN_US, self.now_us + 10_000_000))
        assert self.ledger.leases() == ()
        found = run(self.ledger.sums("w0", self.now_us + 10_000_000))
        assert isinstance(found, SumsView)
        assert found.count == 0
        assert not any((*found.mean, *found.var, *found.third, *found.top))


LedgerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLedger = LedgerMachine.TestCase
