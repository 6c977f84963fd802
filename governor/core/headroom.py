"""Headroom: what running requests will hold of a KV pool over time, as sums of additive profiles.

Integers throughout, so that adding and taking away is exact and a decision replays bit for bit.
Knows neither workers nor leases.
"""

import math
import sys
from dataclasses import dataclass, field, replace
from operator import add

from governor.core.forecast import GRID_TOKENS, Survival

# The ring (DESIGN §6): 64 bins keep the error of a bin's width under 1/64 of the longest request
# and a check at about ten microseconds in pure Python.
PROFILE_BINS = 64
# Below this many requests the sum is too far from Gaussian (measured: at 25 requests a Gaussian
# 0.99 quantile wastes 23 % of the pool) and the skew-corrected quantile is used.
SMALL_POOL = 16
# A request that outlived its whole forecast is taken to run on for this share of its length: until
# the next progress checkpoint (x1.25), which looks again.
_OVERDUE_SHARE = 0.25
_ZEROS = (0,) * PROFILE_BINS


@dataclass(frozen=True, slots=True)
class Profile:
    """One request's blocks over 64 absolute time bins, from bin `start_bin` on.

    In bin k the request holds b blocks if it still runs, else none: mean b·S in milliblocks and
    variance b²·S(1-S) in milliblocks². Both give b and S back, hence `tops`, the milliblocks held
    if it is alive, and `thirds`, the third central moment b³·S(1-S)(1-2S) in milliblock·block²
    (a unit in which the sums of a large pool still fit in 53 bits).
    """

    start_bin: int
    mean_milliblocks: tuple[int, ...]
    var: tuple[int, ...]
    tops: tuple[int, ...] = field(init=False, repr=False, compare=False)
    thirds: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.mean_milliblocks) != PROFILE_BINS or len(self.var) != PROFILE_BINS:
            raise ValueError(f"a profile has {PROFILE_BINS} bins")
        tops, thirds = list(_ZEROS), list(_ZEROS)
        for index, mean in enumerate(self.mean_milliblocks):
            if mean > 0 and (var := self.var[index]):
                spread = -(-var // mean)
                tops[index] = mean + spread
                thirds[index] = var * (spread - mean) // 1_000_000
            else:
                tops[index] = mean
        object.__setattr__(self, "tops", tuple(tops))
        object.__setattr__(self, "thirds", tuple(thirds))

    def starting(self, start_bin: int) -> "Profile":
        """The same request started in another bin."""
        return self if start_bin == self.start_bin else replace(self, start_bin=start_bin)


EMPTY_PROFILE = Profile(0, _ZEROS, _ZEROS)


@dataclass(frozen=True, slots=True)
class SumsView:
    """Sums over the profiles of `count` requests, for 64 bins from `base_bin` on; a snapshot."""

    base_bin: int
    count: int
    mean: tuple[int, ...]
    var: tuple[int, ...]
    third: tuple[int, ...]
    top: tuple[int, ...]


EMPTY_SUMS = SumsView(0, 0, _ZEROS, _ZEROS, _ZEROS, _ZEROS)


class PoolSums:
    """The running sums of one pool. The window moves forward only; bins of the past are dropped.

    `remove` undoes `add` exactly for the bins that are still in the window, whatever was added,
    removed or advanced in between.
    """

    __slots__ = ("_mean", "_third", "_top", "_var", "base_bin", "count")

    def __init__(self, base_bin: int = 0) -> None:
        self.base_bin = base_bin
        self.count = 0
        self._mean = [0] * PROFILE_BINS
        self._var = [0] * PROFILE_BINS
        self._third = [0] * PROFILE_BINS
        self._top = [0] * PROFILE_BINS

    def advance(self, current_bin: int) -> None:
        """Move the window's start to `current_bin`; an earlier bin changes nothing."""
        passed = current_bin - self.base_bin
        if passed <= 0:
            return
        for ring in (self._mean, self._var, self._third, self._top):
            del ring[:passed]
            ring.extend([0] * (PROFILE_BINS - len(ring)))
        self.base_bin = current_bin

    def add(self, profile: Profile) -> None:
        """Add a profile; the window moves to its start where that is later."""
        self.advance(profile.start_bin)
        self._apply(profile, 1)

    def remove(self, profile: Profile) -> None:
        """Take away a profile that was added before."""
        self._apply(profile, -1)

    def _apply(self, profile: Profile, sign: int) -> None:
        self.count += sign
        past = self.base_bin - profile.start_bin
        for ring, values in (
            (self._mean, profile.mean_milliblocks),
            (self._var, profile.var),
            (self._third, profile.thirds),
            (self._top, profile.tops),
        ):
            for index, value in enumerate(values[past:]):
                ring[index] += sign * value

    def view(self) -> SumsView:
        """The sums as a value."""
        return SumsView(
            self.base_bin,
            self.count,
            tuple(self._mean),
            tuple(self._var),
            tuple(self._third),
            tuple(self._top),
        )


def conditioned(sums: SumsView) -> SumsView:
    """The sums given that everything in them still runs, as it does: what ends is taken away.

    A profile knows what was generated when it was made. Since then those that ended have left the
    sums with all that they stood for, while those that run on still count with the chance that they
    had of getting here (measured: the sums of short requests were 20 % below what was held). In the
    window's first bin each holds its blocks for certain, `top`; later bins grow by the same factor,
    up to `top`. Exact where all have the same chance, else on the safe side.
    """
    first, certain = sums.mean[0], sums.top[0]
    if first <= 0 or certain <= first:
        return sums
    factor = certain / first
    means, variances, thirds = list(sums.mean), list(sums.var), list(sums.third)
    for index, (mean, top) in enumerate(zip(sums.mean, sums.top, strict=True)):
        if mean <= 0 or top <= mean:
            continue
        before, grown = mean / top, min(1.0, factor * mean / top)
        blocks = variances[index] / (mean * (1.0 - before))
        means[index] = int(grown * top)
        variance = blocks * means[index] * (1.0 - grown)
        variances[index] = int(variance)
        thirds[index] = int(variance * blocks * (1.0 - 2.0 * grown) / 1e6)
    return replace(sums, mean=tuple(means), var=tuple(variances), third=tuple(thirds))


def profile(
    prompt_tokens: int,
    held: Survival,
    generated_tokens: int,
    block_size: int,
    us_per_token: int,
    bin_us: int,
    now_us: int,
    *,
    shared_blocks: int = 0,
) -> Profile:
    """The profile of a request that has generated `generated_tokens` of what `held` describes.

    The start counts as the middle of its bin and survival is taken at the middle of each bin: over
    many requests these errors cancel, and the shape does not depend on the time, so that a waiting
    request keeps its profile (`Profile.starting`). Tokens are those of the bin's end, for it is the
    peak that must fit: a request that lives for a few bins only is largest just before it ends.
    `shared_blocks` of the prompt are counted with another running request already (prefix sharing).
    A request that has outlived its forecast still holds what it holds. Raises ValueError for
    negative counts or units below one.
    """
    if prompt_tokens < 0 or generated_tokens < 0 or min(us_per_token, bin_us, block_size) < 1:
        raise ValueError("token counts must be >= 0 and units >= 1")
    width = bin_us / us_per_token
    middles = [width / 4, *(width * k for k in range(1, PROFILE_BINS))]
    # The token under way has its slot; the rounding up to whole blocks is that of `blocks_for`.
    rounding_up = prompt_tokens + generated_tokens + block_size
    longest = math.inf
    if held.limit_tokens is not None:
        longest = max(0, held.limit_tokens - generated_tokens)
    means, variances = list(_ZEROS), list(_ZEROS)
    for index, alive in enumerate(_alive(held, generated_tokens, middles)):
        ahead = min(middles[index] + width / 2, longest)
        blocks = int(rounding_up + ahead) // block_size - shared_blocks
        mean = int(1000.0 * blocks * alive + 0.5)
        if mean < 1:
            # Less than a thousandth of a block; later bins hold less still.
            if blocks > 0:
                break
            continue
        means[index] = mean
        variances[index] = mean * (1000 * blocks - mean) if alive < 1.0 else 0
    return Profile(now_us // bin_us, tuple(means), tuple(variances))


def _alive(held: Survival, generated: int, ahead: list[float]) -> list[float]:
    """P(length > generated + t | length > generated) for rising t, up to the first 0."""
    reached = held.at(generated)
    if reached <= 0.0:
        more = max(ahead[0], generated * _OVERDUE_SHARE)
        return [1.0 for t in ahead if t <= more]
    limit = held.limit_tokens
    found: list[float] = []
    cell, start, s_start, end, slope = -1, 0, 1.0, 0, 0.0
    for t in ahead:
        tokens = generated + t
        if limit is not None and tokens >= limit:
            break
        while tokens >= end:
            cell += 1
            if cell == len(GRID_TOKENS):
                start, s_start, end, slope = end, held.values[-1], sys.maxsize, 0.0
                break
            if cell:
                start, s_start = end, held.values[cell - 1]
            end = GRID_TOKENS[cell]
            slope = (held.values[cell] - s_start) / (end - start)
        alive = (s_start + (tokens - start) * slope) / reached
        if alive <= 0.0:
            break
        found.append(min(1.0, alive))
    # An end inside the first bin must not make a running request vanish from it.
    return found or [1.0]


def _aligned(values: tuple[int, ...], shift: int) -> tuple[int, ...]:
    """`values` seen from a window that starts `shift` bins later (zeros beyond the end)."""
    if shift == 0:
        return values
    if shift >= PROFILE_BINS or shift <= -PROFILE_BINS:
        return _ZEROS
    if shift > 0:
        return values[shift:] + _ZEROS[:shift]
    return _ZEROS[:-shift] + values[:shift]


def peak(sums: SumsView, candidate: Profile, z: float, sigma_c: float) -> int:
    """Milliblocks that the pool with the candidate stays under at any time, with confidence z.

    The maximum over bins of E + z·√(V + (σ_c·E)²), where σ_c is the forecast error that all
    requests share, and never more than all of them hold if none ends. Below 16 requests the
    Gaussian quantile is replaced by that of the Pearson III distribution with the same skewness
    (Wilson-Hilferty). It needs only sums, so it is the same for every store, and no draw.
    """
    shift = candidate.start_bin - sums.base_bin
    later, own = max(0, shift), max(0, -shift)
    means: list[int] = list(
        map(add, _aligned(sums.mean, later), _aligned(candidate.mean_milliblocks, own))
    )
    variances: list[int] = list(map(add, _aligned(sums.var, later), _aligned(candidate.var, own)))
    tops: list[int] = list(map(add, _aligned(sums.top, later), _aligned(candidate.tops, own)))
    shared = sigma_c * sigma_c
    if sums.count + 1 >= SMALL_POOL:
        sqrt = math.sqrt
        gaussian = max(
            [e + z * sqrt(v + shared * e * e) for e, v in zip(means, variances, strict=True)]
        )
        return math.ceil(min(gaussian, max(tops)))
    thirds = map(add, _aligned(sums.third, later), _aligned(candidate.thirds, own))
    highest = 0.0
    for e, v, third, most in zip(means, variances, thirds, tops, strict=True):
        if most > highest:
            quantile = e + _skewed(v + shared * e * e, third, z)
            highest = max(highest, min(quantile, most))
    return math.ceil(highest)


def _skewed(variance: float, third: int, z: float) -> float:
    """Distance of the quantile at `z` from the mean; variance in milliblocks², see `thirds`."""
    if variance <= 0.0:
        return 0.0
    deviation = math.sqrt(variance)
    skewness = 1e6 * third / (variance * deviation)
    if abs(skewness) < 1e-3:
        return z * deviation
    cube: float = (1.0 + skewness * z / 6.0 - skewness * skewness / 36.0) ** 3
    return 2.0 * deviation / skewness * (cube - 1.0)


def drained_by(sums: SumsView, need_milliblocks: int, limit_milliblocks: int) -> int | None:
    """The first bin, absolute, from which on the expected sum leaves `need_milliblocks` free.

    None where that does not happen within the window.
    """
    free_from: int | None = None
    for index in range(PROFILE_BINS - 1, -1, -1):
        if sums.mean[index] + need_milliblocks > limit_milliblocks:
            break
        free_from = sums.base_bin + index
    return free_from
