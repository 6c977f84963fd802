"""Quota: a tenant's KV area per minute as a token bucket. One minute's worth may be saved up."""

from governor.core.units import US_PER_S

_MINUTE_US = 60 * US_PER_S


class AreaBucket:
    """KV area (token²) that a tenant may still spend. It may go negative: a true-up is a debt."""

    __slots__ = ("_left", "_per_minute", "_rest", "_since_us")

    def __init__(self, per_minute: int, now_us: int) -> None:
        if per_minute < 0:
            raise ValueError(f"a quota is >= 0, got {per_minute}")
        self._per_minute = per_minute
        self._left = per_minute
        self._rest = 0
        self._since_us = now_us

    def left(self, now_us: int) -> int:
        """What is left at `now_us`, in whole token²."""
        if now_us > self._since_us:
            earned = (now_us - self._since_us) * self._per_minute + self._rest
            self._left = min(self._per_minute, self._left + earned // _MINUTE_US)
            self._rest = earned % _MINUTE_US
            self._since_us = now_us
        return self._left

    def spend(self, area: int, now_us: int) -> None:
        """Take `area`; a negative one gives back, never above one minute's worth."""
        self._left = min(self._per_minute, self.left(now_us) - area)

    def resize(self, per_minute: int, now_us: int) -> None:
        """A changed policy: what was spent stays spent."""
        spent = self._per_minute - self.left(now_us)
        self._per_minute = per_minute
        self._left = per_minute - spent
