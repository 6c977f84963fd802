"""Price: λ, the price of KV on one pool. Grants shrink with it, then thinkers are landed."""

from dataclasses import dataclass

from governor.core.units import US_PER_S


@dataclass(frozen=True, slots=True)
class PriceSettings:
    """`high` and `low` are shares of the pool's limit: above the one λ rises, below the other it
    falls, in between it stays (hysteresis 0.85/0.95, reference science §4.3). From `land_from` on
    running thinkers are landed: at 1.0 grants have shrunk to the median natural length."""

    high: float = 0.95
    low: float = 0.85
    step_up: float = 0.25
    step_down: float = 0.1
    most: float = 2.0
    land_from: float = 1.0
    first_latency_us: int = US_PER_S


class PriceController:
    """One λ per pool. Bounded slew: one step per median landing latency, in either direction.

    Bounded value, so there is nothing to wind up. The caller's pressure counts landings under way
    at what they are predicted to hold, so that one cause is not answered twice.
    """

    __slots__ = ("_latency_us", "_settings", "_stepped_us", "value")

    def __init__(self, settings: PriceSettings) -> None:
        self._settings = settings
        self._latency_us = float(settings.first_latency_us)
        self._stepped_us: int | None = None
        self.value = 0.0

    @property
    def latency_us(self) -> int:
        """Running median of how long landings take to free their blocks."""
        return int(self._latency_us)

    @property
    def lands(self) -> bool:
        """Whether λ is so high that running thinkers are to be landed."""
        return self.value >= self._settings.land_from

    def landed(self, took_us: int) -> None:
        """A landing has freed its blocks. The median moves by a tenth towards the new value."""
        self._latency_us *= 1.1 if took_us > self._latency_us else 1 / 1.1
        self._latency_us = min(max(self._latency_us, 1_000.0), 600.0 * US_PER_S)

    def update(self, pressure: float, now_us: int) -> bool:
        """Take `pressure`, predicted need over limit. True where λ made a step upwards."""
        settings = self._settings
        if self._stepped_us is not None and now_us - self._stepped_us < self._latency_us:
            return False
        if pressure > settings.high:
            self._stepped_us = now_us
            self.value = min(settings.most, self.value + settings.step_up)
            return True
        if pressure < settings.low and self.value > 0.0:
            self._stepped_us = now_us
            self.value = max(0.0, self.value - settings.step_down)
        return False
