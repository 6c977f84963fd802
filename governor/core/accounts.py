"""Accounts: what each tenant has in flight and what is left of its KV-area quota."""

from collections import Counter

from governor.core.admission import TenantUsage
from governor.core.policy import TenantPolicy
from governor.core.quota import AreaBucket


class TenantAccounts:
    """In-flight counts and quota buckets by tenant. A tenant without a quota has no bucket."""

    __slots__ = ("_buckets", "_in_flight")

    def __init__(self) -> None:
        self._in_flight: Counter[str] = Counter()
        self._buckets: dict[str, AreaBucket] = {}

    @property
    def in_flight(self) -> int:
        """Requests that hold a lease, or are about to, of all tenants."""
        return self._in_flight.total()

    def usage(self, tenant: str, policy: TenantPolicy, now_us: int) -> TenantUsage:
        """What the tenant holds at `now_us`."""
        per_minute = policy.kv_area_per_minute
        if per_minute is None:
            return TenantUsage(self._in_flight[tenant], None)
        bucket = self._buckets.get(tenant)
        if bucket is None:
            bucket = self._buckets[tenant] = AreaBucket(per_minute, now_us)
        return TenantUsage(self._in_flight[tenant], bucket.left(now_us))

    def begin(self, tenant: str, area: int, now_us: int) -> None:
        """A request of so much forecast area is dispatched."""
        self._in_flight[tenant] += 1
        self.spend(tenant, area, now_us)

    def end(self, tenant: str, area_more: int, now_us: int) -> None:
        """A dispatched request has ended, having used `area_more` beyond what it was charged."""
        self._in_flight[tenant] -= 1
        if self._in_flight[tenant] <= 0:
            del self._in_flight[tenant]
        self.spend(tenant, area_more, now_us)

    def spend(self, tenant: str, area: int, now_us: int) -> None:
        """Charge the quota; a negative area gives back."""
        bucket = self._buckets.get(tenant)
        if bucket is not None:
            bucket.spend(area, now_us)

    def resize(self, tenant: str, policy: TenantPolicy, now_us: int) -> None:
        """The tenant's policy has changed."""
        bucket = self._buckets.get(tenant)
        if policy.kv_area_per_minute is None:
            self._buckets.pop(tenant, None)
        elif bucket is not None:
            bucket.resize(policy.kv_area_per_minute, now_us)
