"""Overcommit: how far a pool may be filled, learned for each worker. z, the shared forecast error,
and a concurrency limit for a worker that the headroom model does not describe.
"""

import math
from dataclasses import dataclass

# z starts at the Gaussian 0.99 quantile: a simulated pool of 245k KV tokens then preempted 0.0 % of
# its requests at 98 % of the best goodput (reference simulation), and it is learned from there.
FIRST_Z = 2.33
MOST_Z = 4.0
FIRST_SIGMA = 0.1
# All forecasts rest on one estimator, so some of their error is always shared.
LEAST_SIGMA = 0.05
MOST_SIGMA = 0.5


@dataclass(frozen=True, slots=True)
class OvercommitSettings:
    """Rates of learning. `exceed_target` is how often the memory held may be above its quantile;
    `preempt_target` how many preemptions per request are too many (DESIGN §6)."""

    exceed_target: float = 0.01
    preempt_target: float = 0.01
    z_rate: float = 0.1
    outer_rate: float = 0.1
    sigma_rate: float = 0.05


class Overcommit:
    """Learns z and σ_c from what a set of requests held against what was predicted for it.

    Online quantile tracking (as in adaptive conformal inference): z rises by (1 - target) when the
    set held more than its quantile and falls by the target when it did not, so that the share of
    exceedances tends to the target. Preemptions per request move an outer term of z, slowly: they
    are rare and late, but they are what exceedances stand for.
    """

    __slots__ = ("_outer", "_settings", "_variance", "_z", "exceedances", "observed", "sigma_c")

    def __init__(self, settings: OvercommitSettings) -> None:
        self._settings = settings
        self._z = FIRST_Z
        self._outer = 0.0
        # Signed: a set that does better than its variance takes back what another has added.
        self._variance = FIRST_SIGMA**2
        self.sigma_c = FIRST_SIGMA
        self.observed = 0
        self.exceedances = 0

    @property
    def z(self) -> float:
        """The confidence to admit with."""
        return min(MOST_Z, max(0.0, self._z + self._outer))

    def held(self, held_milliblocks: int, mean: int, var: int) -> None:
        """A set that was predicted `mean` and `var` for this time holds `held_milliblocks`."""
        if mean <= 0:
            return
        settings = self._settings
        spread = math.sqrt(var + (self.sigma_c * mean) ** 2)
        exceeds = held_milliblocks > mean + self.z * spread
        self.observed += 1
        self.exceedances += exceeds
        step = (1.0 if exceeds else 0.0) - settings.exceed_target
        self._z = min(MOST_Z, max(0.0, self._z + settings.z_rate * step))
        unexplained = ((held_milliblocks - mean) ** 2 - var) / mean**2
        self._variance += settings.sigma_rate * (min(1.0, unexplained) - self._variance)
        self.sigma_c = min(MOST_SIGMA, max(LEAST_SIGMA, math.sqrt(max(0.0, self._variance))))

    def preempted(self, preemptions: int, dispatched: int) -> None:
        """The engine preempted so often since the last report, in which so many were dispatched."""
        excess = preemptions - self._settings.preempt_target * dispatched
        self._outer = min(2.0, max(0.0, self._outer + self._settings.outer_rate * excess))


class ConcurrencyLimit:
    """AIMD limit on own requests in flight, in force while the worker persistently holds more KV
    than our leases explain though nobody else uses it.

    It starts at what is in flight, takes a quarter off at each scrape that shows distress (the
    engine queues or preempts), adds one at each that does not, and is lifted after as many agreeing
    scrapes in a row as it took to come into force.
    """

    __slots__ = ("_agreeing", "_disagreeing", "limit")

    _PERSISTENT = 5
    _DECREASE = 0.75

    def __init__(self) -> None:
        self.limit: int | None = None
        self._agreeing = 0
        self._disagreeing = 0

    def scraped(self, *, disagrees: bool, distress: bool, in_flight: int) -> None:
        """One scrape's evidence."""
        self._disagreeing = self._disagreeing + 1 if disagrees else 0
        self._agreeing = 0 if disagrees else self._agreeing + 1
        if self.limit is None:
            if self._disagreeing >= self._PERSISTENT:
                self.limit = max(1, in_flight)
            return
        if self._agreeing >= self._PERSISTENT:
            self.limit = None
        elif distress:
            self.limit = max(1, int(min(self.limit, max(1, in_flight)) * self._DECREASE))
        else:
            self.limit += 1
