"""Ledger in memory, for one allocator process. Depends on nothing, so it is never away.

It is gone when the process ends, and so are the streams that its leases stood for.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, replace

from governor.core.headroom import PoolSums, Profile, SumsView, conditioned, peak
from governor.core.lease import (
    Expired,
    Lease,
    LeaseRequest,
    RefusalReason,
    Refused,
    Settled,
    Settlement,
)


@dataclass(slots=True)
class _Entry:
    """A lease with its profile made once. `ttl_us` is that of its last reserve or renew."""

    lease: Lease
    profile: Profile
    ttl_us: int


class _Pool:
    """One worker's leases. Orphans are leases whose time is over and whose blocks still count."""

    def __init__(self, epoch: str, bin_us: int, most: int) -> None:
        self.epoch = epoch
        self.bin_us = bin_us
        self.version = 0
        self.sums = PoolSums()
        self.live: dict[str, _Entry] = {}
        self.orphans: dict[str, _Entry] = {}
        self.limit_milliblocks: int | None = None
        # Nothing is overdue before this time; a lower bound, so that most sweeps cost nothing.
        self.due_us: int | None = None
        # Found by a sweep and not told by `expire` yet.
        self.orphaned: deque[Lease] = deque(maxlen=most)
        self.released: deque[Lease] = deque(maxlen=most)

    def note_due(self, at_us: int) -> None:
        """A lease or an orphan ends at `at_us`."""
        self.due_us = at_us if self.due_us is None else min(self.due_us, at_us)

    @property
    def overcommitted(self) -> bool:
        """Whether what is held, by expectation, exceeds the highest limit that was ever asked for.

        Only renewals of held memory and forced reserves bring a pool there.
        """
        limit = self.limit_milliblocks
        return limit is not None and max(self.sums.view().mean) > limit


class MemoryLedger:
    """See `governor.ports.Ledger`. No method awaits anything, hence each is atomic.

    At most `max_leases` are kept for one worker, live and orphaned; the ends of the last
    `max_closed` leases are remembered, so that a second settle can be told from an unknown lease.
    """

    def __init__(self, *, max_leases: int = 10_000, max_closed: int = 10_000) -> None:
        if max_leases < 1 or max_closed < 1:
            raise ValueError("max_leases and max_closed must be at least 1")
        self._max_leases = max_leases
        self._max_closed = max_closed
        self._pools: dict[str, _Pool] = {}
        self._worker_of: dict[str, str] = {}
        self._live_requests: set[tuple[str, int]] = set()
        self._closed: OrderedDict[str, RefusalReason] = OrderedDict()
        self._count = 0

    async def reserve(self, request: LeaseRequest, now_us: int) -> Lease | Refused:
        """See the port."""
        pool = self._pools.get(request.worker_id)
        if pool is None:
            return Refused(RefusalReason.UNKNOWN_WORKER, 0)
        self._sweep(pool, now_us)
        reason = self._objection(pool, request)
        if reason is not None:
            return Refused(reason, pool.version)
        self._count += 1
        lease = Lease(
            id=f"{request.worker_id}/{self._count}",
            request_id=request.request_id,
            attempt=request.attempt,
            worker_id=request.worker_id,
            worker_epoch=request.worker_epoch,
            profile_mean=request.profile.mean_milliblocks,
            profile_var=request.profile.var,
            start_bin=request.profile.start_bin,
            area_charged=request.area_charged,
            forecast_version=request.forecast_version,
            expires_us=now_us + request.ttl_us,
            fence=1,
            ledger_version=pool.version + 1,
        )
        pool.live[lease.id] = _Entry(lease, request.profile, request.ttl_us)
        pool.sums.add(request.profile)
        pool.version += 1
        pool.note_due(lease.expires_us)
        self._worker_of[lease.id] = request.worker_id
        self._live_requests.add((request.request_id, request.attempt))
        return lease

    def _objection(self, pool: _Pool, request: LeaseRequest) -> RefusalReason | None:
        """Why a lease cannot be given, None if it can. Notes the limit that was asked for."""
        if request.worker_epoch != pool.epoch:
            return RefusalReason.STALE_EPOCH
        if (request.request_id, request.attempt) in self._live_requests:
            return RefusalReason.DUPLICATE
        if len(pool.live) + len(pool.orphans) >= self._max_leases:
            return RefusalReason.LEDGER_FULL
        limit = request.limit_milliblocks
        if limit is not None:
            pool.limit_milliblocks = max(limit, pool.limit_milliblocks or 0)
        if request.force or limit is None:
            return None
        if pool.overcommitted:
            return RefusalReason.OVERCOMMITTED
        sums = conditioned(pool.sums.view())
        if peak(sums, request.profile, request.z, request.sigma_c) > limit:
            return RefusalReason.NO_HEADROOM
        return None

    async def renew(
        self, lease_id: str, fence: int, profile: Profile, ttl_us: int, now_us: int
    ) -> Lease | Refused:
        """See the port."""
        pool, entry, reason = self._find(lease_id, fence, now_us)
        if pool is None or entry is None:
            return Refused(reason, pool.version if pool else 0)
        pool.sums.remove(entry.profile)
        pool.sums.add(profile)
        pool.version += 1
        entry.profile, entry.ttl_us = profile, ttl_us
        entry.lease = replace(
            entry.lease,
            profile_mean=profile.mean_milliblocks,
            profile_var=profile.var,
            start_bin=profile.start_bin,
            expires_us=now_us + ttl_us,
            fence=entry.lease.fence + 1,
        )
        pool.note_due(entry.lease.expires_us)
        return entry.lease

    async def settle(
        self, lease_id: str, fence: int, settlement: Settlement, now_us: int
    ) -> Settled | Refused:
        """See the port."""
        pool, entry, reason = self._find(lease_id, fence, now_us)
        if pool is None or entry is None:
            return Refused(reason, pool.version if pool else 0)
        del pool.live[lease_id]
        self._release(pool, entry, RefusalReason.ALREADY_SETTLED)
        return Settled(entry.lease, settlement, pool.version)

    async def expire(
        self,
        worker_id: str,
        worker_epoch: str,
        bin_us: int,
        now_us: int,
        *,
        kv_used_blocks: int | None = None,
    ) -> Expired:
        """See the port."""
        pool = self._pools.get(worker_id)
        if pool is None or pool.epoch != worker_epoch:
            pool = self._restarted(worker_id, worker_epoch, bin_us, pool)
        known = tuple(pool.orphans)
        self._sweep(pool, now_us)
        if kv_used_blocks is not None:
            self._reconcile(pool, known, kv_used_blocks)
        expired = Expired(tuple(pool.orphaned), tuple(pool.released), pool.version)
        pool.orphaned.clear()
        pool.released.clear()
        return expired

    async def confirm_abort(self, lease_id: str, now_us: int) -> Lease | Refused:
        """See the port."""
        pool = self._pools.get(self._worker_of.get(lease_id, ""))
        if pool is None:
            return Refused(self._closed.get(lease_id, RefusalReason.UNKNOWN_LEASE), 0)
        self._sweep(pool, now_us)
        if lease_id in pool.live:
            return Refused(RefusalReason.STILL_LIVE, pool.version)
        entry = pool.orphans.pop(lease_id, None)
        if entry is None:
            return Refused(RefusalReason.EXPIRED, pool.version)
        self._release(pool, entry, RefusalReason.EXPIRED)
        return entry.lease

    async def sums(self, worker_id: str, now_us: int) -> SumsView | Refused:
        """See the port."""
        pool = self._pools.get(worker_id)
        if pool is None:
            return Refused(RefusalReason.UNKNOWN_WORKER, 0)
        self._sweep(pool, now_us)
        return pool.sums.view()

    def overcommitted(self, worker_id: str) -> bool:
        """Whether the worker's pool is marked overcommitted; False for an unknown worker."""
        pool = self._pools.get(worker_id)
        return pool is not None and pool.overcommitted

    def leases(self) -> tuple[Lease, ...]:
        """All leases whose blocks count, orphans included."""
        return tuple(
            entry.lease
            for pool in self._pools.values()
            for entry in (*pool.live.values(), *pool.orphans.values())
        )

    def _find(
        self, lease_id: str, fence: int, now_us: int
    ) -> tuple[_Pool | None, _Entry | None, RefusalReason]:
        """The live lease, or why it cannot be changed."""
        pool = self._pools.get(self._worker_of.get(lease_id, ""))
        if pool is None:
            return None, None, self._closed.get(lease_id, RefusalReason.UNKNOWN_LEASE)
        self._sweep(pool, now_us)
        entry = pool.live.get(lease_id)
        if entry is None:
            return pool, None, RefusalReason.EXPIRED
        if entry.lease.fence != fence:
            return pool, None, RefusalReason.STALE_FENCE
        return pool, entry, RefusalReason.UNKNOWN_LEASE

    def _sweep(self, pool: _Pool, now_us: int) -> None:
        """Move the window to now, orphan what is overdue, release what is overdue twice."""
        pool.sums.advance(now_us // pool.bin_us)
        if pool.due_us is None or now_us < pool.due_us:
            return
        for lease_id in [k for k, e in pool.live.items() if e.lease.expires_us <= now_us]:
            entry = pool.live.pop(lease_id)
            pool.orphans[lease_id] = entry
            pool.orphaned.append(entry.lease)
            pool.version += 1
            self._live_requests.discard((entry.lease.request_id, entry.lease.attempt))
        for lease_id, entry in tuple(pool.orphans.items()):
            if entry.lease.expires_us + entry.ttl_us <= now_us:
                del pool.orphans[lease_id]
                pool.released.append(entry.lease)
                self._release(pool, entry, RefusalReason.EXPIRED)
        ends = [entry.lease.expires_us for entry in pool.live.values()]
        ends += [entry.lease.expires_us + entry.ttl_us for entry in pool.orphans.values()]
        pool.due_us = min(ends, default=None)

    def _reconcile(self, pool: _Pool, known: tuple[str, ...], kv_used_blocks: int) -> None:
        """Release the orphans of an earlier call where the worker holds no more than the live
        leases explain. One that has only just expired may still be on its way out."""
        orphaned = sum(_current(e.profile, pool.sums.base_bin) for e in pool.orphans.values())
        explained = pool.sums.view().mean[0] - orphaned
        if 1000 * kv_used_blocks > explained:
            return
        for lease_id in known:
            entry = pool.orphans.pop(lease_id, None)
            if entry is not None:
                pool.released.append(entry.lease)
                self._release(pool, entry, RefusalReason.EXPIRED)

    def _restarted(self, worker_id: str, epoch: str, bin_us: int, before: _Pool | None) -> _Pool:
        """A worker that is new, or whose engine has restarted and holds nothing any more."""
        if bin_us < 1:
            raise ValueError(f"bin_us must be at least 1, got {bin_us}")
        pool = self._pools[worker_id] = _Pool(epoch, bin_us, self._max_leases)
        if before is not None:
            pool.version = before.version + 1
            pool.orphaned.extend(before.orphaned)
            pool.released.extend(before.released)
            for entry in (*before.live.values(), *before.orphans.values()):
                pool.released.append(entry.lease)
                self._forget(entry.lease, RefusalReason.STALE_EPOCH)
        return pool

    def _release(self, pool: _Pool, entry: _Entry, reason: RefusalReason) -> None:
        pool.sums.remove(entry.profile)
        pool.version += 1
        self._forget(entry.lease, reason)

    def _forget(self, lease: Lease, reason: RefusalReason) -> None:
        """What stays of a closed lease is why later calls are refused."""
        self._live_requests.discard((lease.request_id, lease.attempt))
        del self._worker_of[lease.id]
        self._closed[lease.id] = reason
        while len(self._closed) > self._max_closed:
            self._closed.popitem(last=False)


def _current(profile: Profile, current_bin: int) -> int:
    """The profile's mean in the current bin; 0 where it has ended or not begun."""
    index = current_bin - profile.start_bin
    means = profile.mean_milliblocks
    return means[index] if 0 <= index < len(means) else 0
