"""The ledger's contract, one suite over every store: a difference between stores is a bug.

A store joins by an entry in `STORES`: a function that makes an empty ledger.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from governor.adapters.ledger_memory import MemoryLedger
from governor.core.headroom import EMPTY_PROFILE, PROFILE_BINS, Profile, SumsView, peak
from governor.core.lease import Expired, Lease, LeaseRequest, RefusalReason, Refused, Settled
from governor.ports import Ledger
from tests.admission_builders import SECOND, lease_request, running_profile, settlement

STORES: dict[str, Callable[[], Ledger]] = {"memory": MemoryLedger}
BIN_US = 10_000


@pytest.fixture(params=sorted(STORES))
def empty(request: pytest.FixtureRequest) -> Ledger:
    """A ledger that knows no worker."""
    return STORES[request.param]()


@pytest.fixture
async def ledger(empty: Ledger) -> Ledger:
    """A ledger with one worker, `w0` in epoch `e1`."""
    await empty.expire("w0", "e1", BIN_US, 0)
    return empty


def steady(blocks: int) -> Profile:
    """Certain to hold so many blocks for the whole window."""
    return Profile(0, (1000 * blocks,) * PROFILE_BINS, (0,) * PROFILE_BINS)


async def reserve(ledger: Ledger, request: LeaseRequest, now_us: int = 0) -> Lease:
    lease = await ledger.reserve(request, now_us)
    assert isinstance(lease, Lease)
    return lease


async def held(ledger: Ledger, now_us: int = 0, worker_id: str = "w0") -> int:
    sums = await ledger.sums(worker_id, now_us)
    assert isinstance(sums, SumsView)
    return sums.mean[0]


def reason(answer: object) -> RefusalReason:
    assert isinstance(answer, Refused)
    return answer.reason


async def test_a_reserved_lease_says_what_was_asked_for(ledger: Ledger) -> None:
    request = lease_request("r1", attempt=2, area_charged=77)
    lease = await reserve(ledger, request, 5)
    assert (lease.request_id, lease.attempt, lease.area_charged) == ("r1", 2, 77)
    assert lease.profile == request.profile
    assert lease.expires_us == 5 + SECOND
    assert (await ledger.sums("w0", 5)).count == 1  # type: ignore[union-attr]


async def test_leases_have_ids_of_their_own(ledger: Ledger) -> None:
    leases = [await reserve(ledger, lease_request(f"r{index}")) for index in range(3)]
    assert len({lease.id for lease in leases}) == 3


async def test_headroom_is_checked_again_with_the_same_function(ledger: Ledger) -> None:
    for index in range(9):
        await reserve(ledger, lease_request(f"r{index}", profile=steady(10)))
    sums = await ledger.sums("w0", 0)
    assert isinstance(sums, SumsView)
    fits, too_much = steady(3), steady(12)
    limit = peak(sums, fits, 1.645, 0.1)
    assert peak(sums, too_much, 1.645, 0.1) > limit
    refused = await ledger.reserve(
        lease_request("big", profile=too_much, limit_milliblocks=limit), 0
    )
    assert reason(refused) is RefusalReason.NO_HEADROOM
    assert await held(ledger) == 90_000
    await reserve(ledger, lease_request("small", profile=fits, limit_milliblocks=limit))
    assert await held(ledger) == 93_000


async def test_of_a_race_for_the_last_room_one_wins(ledger: Ledger) -> None:
    racers = [lease_request(f"r{index}", profile=steady(60)) for index in range(5)]
    answers = await asyncio.gather(*(ledger.reserve(racer, 0) for racer in racers))
    assert sum(isinstance(answer, Lease) for answer in answers) == 1
    assert await held(ledger) == 60_000


async def test_an_unknown_limit_is_not_checked(ledger: Ledger) -> None:
    for index in range(3):
        request = lease_request(f"r{index}", profile=steady(90), limit_milliblocks=None)
        await reserve(ledger, request)
    assert await held(ledger) == 270_000


async def test_an_unknown_worker_is_refused(empty: Ledger) -> None:
    assert reason(await empty.reserve(lease_request(), 0)) is RefusalReason.UNKNOWN_WORKER
    assert reason(await empty.sums("w0", 0)) is RefusalReason.UNKNOWN_WORKER


async def test_another_epoch_is_refused(ledger: Ledger) -> None:
    answer = await ledger.reserve(lease_request(worker_epoch="e0"), 0)
    assert reason(answer) is RefusalReason.STALE_EPOCH


async def test_the_same_attempt_is_reserved_once_and_another_attempt_is_another(
    ledger: Ledger,
) -> None:
    first = await reserve(ledger, lease_request("r"))
    assert reason(await ledger.reserve(lease_request("r"), 0)) is RefusalReason.DUPLICATE
    await reserve(ledger, lease_request("r", attempt=1))
    await ledger.settle(first.id, first.fence, settlement(), 0)
    await reserve(ledger, lease_request("r"))


async def test_renew_swaps_the_profile_and_extends_the_lease(ledger: Ledger) -> None:
    lease = await reserve(ledger, lease_request(profile=steady(10)))
    renewed = await ledger.renew(lease.id, lease.fence, steady(4), 5 * SECOND, 7)
    assert isinstance(renewed, Lease)
    assert renewed.expires_us == 7 + 5 * SECOND
    assert renewed.fence > lease.fence
    assert renewed.profile == steady(4)
    assert await held(ledger, 7) == 4_000


async def test_renew_of_held_memory_is_never_refused_and_blocks_new_reserves(
    ledger: Ledger,
) -> None:
    lease = await reserve(ledger, lease_request("a", profile=steady(10)))
    renewed = await ledger.renew(lease.id, lease.fence, steady(150), SECOND, 0)
    assert isinstance(renewed, Lease)
    tiny = lease_request("b", profile=EMPTY_PROFILE)
    assert reason(await ledger.reserve(tiny, 0)) is RefusalReason.OVERCOMMITTED
    await ledger.renew(renewed.id, renewed.fence, steady(20), SECOND, 0)
    await reserve(ledger, tiny)


async def test_a_forced_reserve_is_not_refused_and_overcommits(ledger: Ledger) -> None:
    await reserve(ledger, lease_request("a", profile=steady(150), force=True))
    answer = await ledger.reserve(lease_request("b", profile=steady(1)), 0)
    assert reason(answer) is RefusalReason.OVERCOMMITTED
    await reserve(ledger, lease_request("c", profile=steady(1), force=True))


async def test_settle_closes_the_lease_and_returns_it_with_its_settlement(ledger: Ledger) -> None:
    lease = await reserve(ledger, lease_request())
    settled = await ledger.settle(lease.id, lease.fence, settlement(area=42), 3)
    assert isinstance(settled, Settled)
    assert settled.lease == lease
    assert settled.settlement.area == 42
    assert await held(ledger, 3) == 0


async def test_a_second_settle_says_so_and_changes_nothing(ledger: Ledger) -> None:
    lease = await reserve(ledger, lease_request("a"))
    await reserve(ledger, lease_request("b", profile=steady(5)))
    await ledger.settle(lease.id, lease.fence, settlement(), 0)
    before = await ledger.sums("w0", 0)
    for _ in range(2):
        answer = await ledger.settle(lease.id, lease.fence, settlement(), 0)
        assert reason(answer) is RefusalReason.ALREADY_SETTLED
    answer = await ledger.renew(lease.id, lease.fence, steady(1), SECOND, 0)
    assert reason(answer) is RefusalReason.ALREADY_SETTLED
    assert await ledger.sums("w0", 0) == before


async def test_of_many_settles_at_once_one_counts(ledger: Ledger) -> None:
    lease = await reserve(ledger, lease_request())
    answers = await asyncio.gather(
        *(ledger.settle(lease.id, lease.fence, settlement(), 0) for _ in range(5))
    )
    assert sum(isinstance(answer, Settled) for answer in answers) == 1


async def test_an_unknown_lease_is_refused(ledger: Ledger) -> None:
    unknown = RefusalReason.UNKNOWN_LEASE
    assert reason(await ledger.renew("?", 1, steady(1), 1, 0)) is unknown
    assert reason(await ledger.settle("?", 1, settlement(), 0)) is unknown
    assert reason(await ledger.confirm_abort("?", 0)) is unknown


async def test_an_older_fence_cannot_change_the_lease(ledger: Ledger) -> None:
    lease = await reserve(ledger, lease_request(profile=steady(10)))
    renewed = await ledger.renew(lease.id, lease.fence, steady(5), SECOND, 0)
    assert isinstance(renewed, Lease)
    stale = RefusalReason.STALE_FENCE
    assert reason(await ledger.renew(lease.id, lease.fence, steady(1), SECOND, 0)) is stale
    assert reason(await ledger.settle(lease.id, lease.fence, settlement(), 0)) is stale
    assert await held(ledger) == 5_000
    assert isinstance(await ledger.settle(renewed.id, renewed.fence, settlement(), 0), Settled)


async def test_an_expired_lease_is_orphaned_and_still_counts(ledger: Ledger) -> None:
    lease = await reserve(ledger, lease_request(profile=steady(10)))
    expired = await ledger.expire("w0", "e1", BIN_US, SECOND - 1)
    assert expired.orphaned == ()
    expired = await ledger.expire("w0", "e1", BIN_US, SECOND)
    assert expired.orphaned == (lease,)
    assert expired.released == ()
    assert (await ledger.expire("w0", "e1", BIN_US, SECOND)).orphaned == ()
    sums = await ledger.sums("w0", SECOND)
    assert isinstance(sums, SumsView)
    assert sums.count == 1


async def test_an_expired_lease_is_lost_to_its_owner(ledger: Ledger) -> None:
    """Whether or not anybody has swept in the meantime."""
    lease = await reserve(ledger, lease_request())
    gone = RefusalReason.EXPIRED
    answer = await ledger.renew(lease.id, lease.fence, steady(1), SECOND, SECOND)
    assert reason(answer) is gone
    assert reason(await ledger.settle(lease.id, lease.fence, settlement(), SECOND)) is gone
    expired = await ledger.expire("w0", "e1", BIN_US, SECOND)
    assert expired.orphaned == (lease,)


async def test_a_confirmed_abort_releases_an_orphan_once(ledger: Ledger) -> None:
    lease = await reserve(ledger, lease_request(ttl_us=1))
    assert await ledger.confirm_abort(lease.id, 1) == lease
    sums = await ledger.sums("w0", 1)
    assert isinstance(sums, SumsView)
    assert sums.count == 0
    assert reason(await ledger.confirm_abort(lease.id, 1)) is RefusalReason.EXPIRED


async def test_a_live_lease_is_not_aborted_by_confirmation(ledger: Ledger) -> None:
    lease = await reserve(ledger, lease_request())
    assert reason(await ledger.confirm_abort(lease.id, 0)) is RefusalReason.STILL_LIVE
    assert isinstance(await ledger.settle(lease.id, lease.fence, settlement(), 0), Settled)


async def test_a_second_ttl_releases_an_orphan(ledger: Ledger) -> None:
    lease = await reserve(ledger, lease_request(ttl_us=1_000))
    assert (await ledger.expire("w0", "e1", BIN_US, 1_999)).released == ()
    expired = await ledger.expire("w0", "e1", BIN_US, 2_000)
    assert expired.released == (lease,)
    assert await held(ledger, 2_000) == 0


async def test_a_second_ttl_gives_room_to_a_reserve_without_a_sweep(ledger: Ledger) -> None:
    await reserve(ledger, lease_request("a", profile=steady(90), ttl_us=1_000))
    late = lease_request("b", profile=steady(90))
    assert reason(await ledger.reserve(late, 1_500)) is RefusalReason.NO_HEADROOM
    await reserve(ledger, late, 2_000)


async def test_the_workers_own_count_releases_orphans_it_no_longer_holds(ledger: Ledger) -> None:
    orphan = await reserve(ledger, lease_request("a", profile=steady(10), ttl_us=1_000))
    await reserve(ledger, lease_request("b", profile=steady(20)))

    async def scrape(now_us: int, used_blocks: int) -> Expired:
        return await ledger.expire("w0", "e1", BIN_US, now_us, kv_used_blocks=used_blocks)

    # In the scrape that orphans it the count may be older than the abort.
    assert (await scrape(1_000, 20)).released == ()
    assert (await scrape(1_100, 25)).released == ()
    assert (await scrape(1_200, 20)).released == (orphan,)
    assert await held(ledger, 1_200) == 20_000


async def test_a_changed_epoch_releases_everything(ledger: Ledger) -> None:
    live = await reserve(ledger, lease_request("a"))
    orphan = await reserve(ledger, lease_request("b", ttl_us=1))
    expired = await ledger.expire("w0", "e2", BIN_US, 2)
    assert set(expired.released) == {live, orphan}
    assert await held(ledger, 2) == 0
    answer = await ledger.settle(live.id, live.fence, settlement(), 2)
    assert reason(answer) is RefusalReason.STALE_EPOCH
    await reserve(ledger, lease_request("a", worker_epoch="e2"), 2)


async def test_workers_do_not_share_their_sums(ledger: Ledger) -> None:
    await ledger.expire("w1", "e1", 20_000, 0)
    await reserve(ledger, lease_request("a", profile=steady(99)))
    await reserve(ledger, lease_request("b", worker_id="w1", profile=steady(7)))
    assert await held(ledger) == 99_000
    assert await held(ledger, worker_id="w1") == 7_000


async def test_what_is_predicted_to_have_ended_leaves_room(ledger: Ledger) -> None:
    soon_over = running_profile(1_600 // 10)
    for index in range(8):
        await reserve(ledger, lease_request(f"r{index}", profile=soon_over))
    late = lease_request("late", profile=steady(90).starting(50))
    assert isinstance(await ledger.reserve(late, 500_000), Lease)


async def test_the_version_grows_with_every_change_and_with_nothing_else(ledger: Ledger) -> None:
    lease = await reserve(ledger, lease_request("a", profile=steady(80)))
    over = lease_request("b", profile=steady(80))
    first, second = await ledger.reserve(over, 0), await ledger.reserve(over, 0)
    assert first == second
    settled = await ledger.settle(lease.id, lease.fence, settlement(), 0)
    assert isinstance(first, Refused)
    assert isinstance(settled, Settled)
    assert settled.ledger_version > first.ledger_version


async def test_a_lease_is_found_again_after_a_refused_change(ledger: Ledger) -> None:
    lease = await reserve(ledger, lease_request())
    await ledger.settle(lease.id, lease.fence + 1, settlement(), 0)
    assert isinstance(await ledger.settle(lease.id, lease.fence, settlement(), 0), Settled)


async def test_profiles_survive_the_store_exactly(ledger: Ledger) -> None:
    profile = replace(running_profile(333, prompt_tokens=50), start_bin=0)
    lease = await reserve(ledger, lease_request(profile=profile))
    assert (lease.profile_mean, lease.profile_var) == (profile.mean_milliblocks, profile.var)
    sums = await ledger.sums("w0", 0)
    assert isinstance(sums, SumsView)
    assert (sums.mean, sums.var) == (profile.mean_milliblocks, profile.var)
    assert (sums.third, sums.top) == (profile.thirds, profile.tops)
