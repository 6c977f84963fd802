"""What only the ledger in memory promises: bounded memory. The rest is its contract suite."""

import pytest

from governor.adapters.ledger_memory import MemoryLedger
from governor.core.lease import Lease, RefusalReason, Refused
from tests.admission_builders import lease_request, settlement


async def test_leases_per_worker_are_bounded() -> None:
    ledger = MemoryLedger(max_leases=2)
    await ledger.expire("w0", "e1", 10_000, 0)
    answers = [await ledger.reserve(lease_request(f"r{index}"), 0) for index in range(3)]
    assert isinstance(answers[1], Lease)
    assert answers[2] == Refused(RefusalReason.LEDGER_FULL, 2)


async def test_the_ends_of_old_leases_are_forgotten() -> None:
    ledger = MemoryLedger(max_closed=2)
    await ledger.expire("w0", "e1", 10_000, 0)
    closed = []
    for index in range(3):
        lease = await ledger.reserve(lease_request(f"r{index}"), 0)
        assert isinstance(lease, Lease)
        await ledger.settle(lease.id, lease.fence, settlement(), 0)
        closed.append(lease)
    again = [await ledger.settle(lease.id, lease.fence, settlement(), 0) for lease in closed]
    assert [answer.reason for answer in again if isinstance(answer, Refused)] == [
        RefusalReason.UNKNOWN_LEASE,
        RefusalReason.ALREADY_SETTLED,
        RefusalReason.ALREADY_SETTLED,
    ]


async def test_a_reserve_far_from_any_expiry_keeps_every_lease() -> None:
    ledger = MemoryLedger()
    await ledger.expire("w0", "e1", 10_000, 0)
    for index in range(5):
        await ledger.reserve(lease_request(f"r{index}"), index)
    assert len(ledger.leases()) == 5
    assert not ledger.overcommitted("w0")
    assert not ledger.overcommitted("unknown")


@pytest.mark.parametrize("bounds", [{"max_leases": 0}, {"max_closed": 0}])
def test_senseless_bounds_are_refused(bounds: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        MemoryLedger(**bounds)


async def test_a_worker_without_a_bin_width_is_refused() -> None:
    with pytest.raises(ValueError):
        await MemoryLedger().expire("w0", "e1", 0, 0)
