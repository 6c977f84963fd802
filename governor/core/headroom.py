"""Headroom: what running requests will hold of a KV pool over time, as sums of additive profiles.

Integers throughout, so that adding and taking away is exact and a decision replays bit for bit.
Knows neither workers nor leases.
"""

import math
from dataclasses import dataclass

from governor.core.forecast import GRID_TOKENS, Survival
from governor.core.units import blocks_for

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
    variance b²·S(1-S) in milliblocks², from which b and S can be had back.
    """

    start_bin: int
    mean_milliblocks: tuple[int, ...]
    var: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.mean_milliblocks) != PROFILE_BINS or len(self.var) != PROFILE_BINS:
            raise ValueError(f"a profile has {PROFILE_BINS} bins")

    @property
    def tops(self) -> tuple[int, ...]:
        """Milliblocks held in each bin if the request is alive then: b = mean + var/mean."""
        return tuple(
            m - (-v // m) if m > 0 else 0
            for m, v in zip(self.mean_milliblocks, self.var, strict=True)
        )

    @property
    def thirds(self) -> tuple[int, ...]:
        """Third central moment by bin: b³·S(1-S)(1-2S), in milliblock·block² (fits in 53 bits)."""
        return tuple(
            v * (v // m - m) // 1_000_000 if m > 0 else 0
            for m, v in zip(self.mean_milliblocks, self.var, strict=True)
        )


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
            for index, value in enumerate(values[past:] if past else values):
                if value:
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

    Survival and tokens are taken at the middle of each bin: over many requests the two errors of a
    bin cancel. `shared_blocks` of the prompt are already counted with another running request
    (prefix sharing) and are left out. A request that has outlived its forecast still holds what it
    holds. Raises ValueError for negative counts or units below one.
    """
    if prompt_tokens < 0 or generated_tokens < 0 or min(us_per_token, bin_us) < 1:
        raise ValueError("token counts must be >= 0 and time units >= 1")
    start_bin = now_us // bin_us
    first_end_us = (start_bin + 1) * bin_us - now_us
    width = bin_us / us_per_token
    middles = [first_end_us / us_per_token / 2]
    middles.extend(first_end_us / us_per_token + width * (k + 0.5) for k in range(PROFILE_BINS - 1))
    means: list[int] = []
    variances: list[int] = []
    held_tokens = prompt_tokens + generated_tokens + 1
    for ahead, alive in zip(middles, _alive(held, generated_tokens, middles), strict=False):
        blocks = blocks_for(held_tokens + int(ahead), block_size) - shared_blocks
        if blocks > 0:
            means.append(round(1000 * blocks * alive))
            variances.append(round(1_000_000 * blocks * blocks * alive * (1.0 - alive)))
        else:
            means.append(0)
            variances.append(0)
    rest = PROFILE_BINS - len(means)
    return Profile(start_bin, (*means, *_ZEROS[:rest]), (*variances, *_ZEROS[:rest]))


def _alive(held: Survival, generated: int, ahead: list[float]) -> list[float]:
    """P(length > generated + t | length > generated) for rising t, up to the first 0."""
    reached = held.at(generated)
    if reached <= 0.0:
        more = max(ahead[0], generated * _OVERDUE_SHARE)
        return [1.0 for t in ahead if t <= more]
    limit = held.limit_tokens
    found: list[float] = []
    cell, start, s_start = 0, 0, 1.0
    for t in ahead:
        tokens = generated + t
        if limit is not None and tokens >= limit:
            # A limit that falls inside the first bin must not make a running request vanish.
            if not found:
                found.append(1.0)
            break
        while cell < len(GRID_TOKENS) and GRID_TOKENS[cell] <= tokens:
            start, s_start = GRID_TOKENS[cell], held.values[cell]
            cell += 1
        alive = s_start
        if cell < len(GRID_TOKENS):
            slope = (held.values[cell] - s_start) / (GRID_TOKENS[cell] - start)
            alive += (tokens - start) * slope
        if alive <= 0.0:
            break
        found.append(min(1.0, alive / reached))
    return found


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
    requests share. Below 16 requests the Gaussian quantile is replaced by that of the Pearson III
    distribution with the same skewness (Wilson-Hilferty), never above what all of them hold if
    none ends. It needs only sums, so it is the same for every store, and no draw.
    """
    shift = candidate.start_bin - sums.base_bin
    ahead = max(0, shift)
    means = _aligned(sums.mean, ahead)
    variances = _aligned(sums.var, ahead)
    own_means = _aligned(candidate.mean_milliblocks, max(0, -shift))
    own_variances = _aligned(candidate.var, max(0, -shift))
    shared = sigma_c * sigma_c
    if sums.count + 1 >= SMALL_POOL:
        sqrt = math.sqrt
        return math.ceil(
            max(
                (e := m + n) + z * sqrt(v + w + shared * e * e)
                for m, n, v, w in zip(means, own_means, variances, own_variances, strict=True)
            )
        )
    thirds = zip(
        _aligned(sums.third, ahead), _aligned(candidate.thirds, max(0, -shift)), strict=True
    )
    tops = zip(_aligned(sums.top, ahead), _aligned(candidate.tops, max(0, -shift)), strict=True)
    highest = 0.0
    for m, n, v, w, third, top in zip(
        means, own_means, variances, own_variances, thirds, tops, strict=True
    ):
        most = top[0] + top[1]
        if most > highest:
            e = m + n
            variance = v + w + shared * e * e
            quantile = e + _skewed(variance, third[0] + third[1], z)
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
