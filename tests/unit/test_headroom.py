"""Headroom: exact sums, the moving window, profiles against hand counts, peaks against exact
enumeration."""

import itertools
import math
import random
from statistics import NormalDist, fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.forecast import Survival
from governor.core.headroom import (
    EMPTY_SUMS,
    PROFILE_BINS,
    PoolSums,
    Profile,
    conditioned,
    drained_by,
    peak,
    profile,
)
from tests.admission_builders import exactly, log_normal, running_profile

profiles = st.builds(
    lambda median, start, prompt, done: profile(
        prompt, log_normal(median), done, 16, 1_000, 10_000, start * 10_000
    ),
    st.floats(20, 2_000),
    st.integers(0, 100),
    st.integers(0, 500),
    st.integers(0, 300),
)


def two_point(blocks: list[int], alive: list[float]) -> list[Profile]:
    """One profile for each request, all of it in the first bin."""
    made = []
    for b, s in zip(blocks, alive, strict=True):
        mean = round(1000 * b * s)
        rest = (0,) * (PROFILE_BINS - 1)
        made.append(Profile(0, (mean, *rest), (mean * (1000 * b - mean), *rest)))
    return made


@given(st.lists(profiles, max_size=8), profiles, st.integers(0, 80))
def test_taking_a_profile_away_restores_the_sums_exactly(
    others: list[Profile], one: Profile, passed: int
) -> None:
    # Both windows start where the later one would, so that they can be compared.
    without, with_it = PoolSums(), PoolSums()
    for other in others:
        without.add(other)
        with_it.add(other)
    with_it.add(one)
    with_it.advance(one.start_bin + passed)
    with_it.remove(one)
    without.advance(with_it.base_bin)
    assert with_it.view() == without.view()


@given(st.lists(profiles, max_size=6))
def test_the_order_of_adding_does_not_matter_within_a_window(some: list[Profile]) -> None:
    aligned = [p.starting(50) for p in some]
    one, other = PoolSums(50), PoolSums(50)
    for p in aligned:
        one.add(p)
    for p in reversed(aligned):
        other.add(p)
    assert one.view() == other.view()


def test_bins_of_the_past_leave_the_window_and_later_ones_move_up() -> None:
    sums = PoolSums()
    sums.add(Profile(0, tuple(range(PROFILE_BINS)), (0,) * PROFILE_BINS))
    sums.advance(10)
    assert sums.view().mean == (*range(10, PROFILE_BINS), *(0,) * 10)


def test_a_certain_length_holds_its_blocks_until_it_ends_and_none_after() -> None:
    made = profile(32, exactly(100), 0, 16, 1_000, 10_000, 0)
    # At the end of bin k, whose middle is at 10·k tokens; never more than all of them. And the one
    # under way.
    assert made.mean_milliblocks[:10] == tuple(
        1000 * math.ceil((32 + min(100, ahead + 5) + 1) / 16) for ahead in (2, *range(10, 100, 10))
    )
    assert not any(made.mean_milliblocks[10:])
    assert not any(made.var)


def test_a_request_shorter_than_a_bin_counts_with_all_that_it_will_hold() -> None:
    made = profile(32, exactly(100), 0, 16, 1_000, 10_000_000, 0)
    assert made.mean_milliblocks[:2] == (1000 * math.ceil((32 + 100 + 1) / 16), 0)


def test_a_profile_does_not_depend_on_the_time_but_for_its_start() -> None:
    early = profile(10, log_normal(100), 5, 16, 1_000, 10_000, 3_000)
    late = profile(10, log_normal(100), 5, 16, 1_000, 10_000, 987_654_321)
    assert late == early.starting(98_765)


def test_a_profile_is_conditional_on_what_has_been_generated() -> None:
    fresh = profile(0, log_normal(100), 0, 16, 1_000, 10_000, 0)
    old = profile(0, log_normal(100), 100, 16, 1_000, 10_000, 0)
    alive_fresh = fresh.mean_milliblocks[10] / fresh.tops[10]
    alive_old = old.mean_milliblocks[10] / old.tops[10]
    survival = log_normal(100)
    assert alive_fresh == pytest.approx(survival.at(100), abs=1e-3)
    assert alive_old == pytest.approx(survival.at(200) / survival.at(100), abs=1e-3)


@pytest.mark.parametrize("generated", [100, 150, 5_000])
def test_a_request_that_outlived_its_forecast_still_holds_what_it_holds(generated: int) -> None:
    made = profile(32, exactly(100), generated, 16, 1_000, 10_000, 0)
    assert made.mean_milliblocks[0] >= 1000 * ((32 + generated) // 16)


def test_an_end_inside_the_first_bin_does_not_make_a_request_vanish() -> None:
    assert profile(32, exactly(1), 0, 16, 1_000, 10_000, 0).mean_milliblocks[0] == 3_000


def test_shared_prefix_blocks_are_left_out() -> None:
    whole = profile(160, exactly(100), 0, 16, 1_000, 10_000, 0)
    shared = profile(160, exactly(100), 0, 16, 1_000, 10_000, 0, shared_blocks=10)
    differences = {
        a - b for a, b in zip(whole.mean_milliblocks, shared.mean_milliblocks, strict=True) if a
    }
    assert differences == {10_000}


@pytest.mark.parametrize(
    ("prompt", "generated", "pace", "width"),
    [(-1, 0, 1, 1), (0, -1, 1, 1), (0, 0, 0, 1), (0, 0, 1, 0)],
)
def test_senseless_units_are_refused(prompt: int, generated: int, pace: int, width: int) -> None:
    with pytest.raises(ValueError):
        profile(prompt, exactly(10), generated, 16, pace, width, 0)


def test_a_profile_needs_64_bins() -> None:
    with pytest.raises(ValueError):
        Profile(0, (1,), (0,))


def test_blocks_and_skew_are_had_back_from_mean_and_variance() -> None:
    (made,) = two_point([40], [0.25])
    assert made.tops[0] == 40_000
    exact_third = 40**3 * 0.25 * 0.75 * 0.5
    assert made.thirds[0] == pytest.approx(1000 * exact_third, rel=1e-6)


def test_the_peak_of_an_empty_pool_is_what_the_candidate_can_hold() -> None:
    assert peak(EMPTY_SUMS, running_profile(160), 1.645, 0.1) == 1000 * math.ceil(151 / 16)


def test_the_peak_with_many_is_the_gaussian_quantile_with_the_shared_error() -> None:
    *others, candidate = two_point([10] * 40, [0.5] * 40)
    sums = PoolSums()
    for other in others:
        sums.add(other)
    mean, var = 200.0, 40 * 100 * 0.25
    wanted = mean + 2.0 * math.sqrt(var + (0.1 * mean) ** 2)
    assert peak(sums.view(), candidate, 2.0, 0.1) == pytest.approx(1000 * wanted, rel=1e-5)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=14), st.floats(0, 4), st.floats(0, 0.5))
def test_the_peak_of_few_is_never_above_what_all_of_them_hold(
    blocks: list[int], z: float, sigma: float
) -> None:
    *others, candidate = two_point(blocks, [0.9] * len(blocks))
    sums = PoolSums()
    for other in others:
        sums.add(other)
    assert peak(sums.view(), candidate, z, sigma) <= 1000 * sum(blocks) + len(blocks)


def exact_quantile(blocks: list[int], alive: list[float], level: float) -> int:
    """By enumeration of all 2^n outcomes."""
    outcomes = []
    for pattern in itertools.product((0, 1), repeat=len(blocks)):
        chance = math.prod(s if on else 1 - s for s, on in zip(alive, pattern, strict=True))
        outcomes.append((sum(b for b, on in zip(blocks, pattern, strict=True) if on), chance))
    total = 0.0
    for value, chance in sorted(outcomes):
        total += chance
        if total >= level - 1e-12:
            return value
    return sum(blocks)


@pytest.mark.parametrize("count", [4, 8, 11])
@pytest.mark.parametrize("z", [1.645, 2.33])
def test_the_peak_of_few_is_near_the_exact_quantile_and_nearer_than_the_gaussian(
    count: int, z: float
) -> None:
    rng = random.Random(7)
    errors, gaussian_errors = [], []
    for _ in range(60 if count < 10 else 15):
        blocks = [rng.choice([2, 4, 8, 16, 32]) for _ in range(count)]
        alive = [rng.betavariate(0.7, 0.7) for _ in range(count)]
        exact = exact_quantile(blocks, alive, NormalDist().cdf(z))
        *others, candidate = two_point(blocks, alive)
        sums = PoolSums()
        for other in others:
            sums.add(other)
        found = peak(sums.view(), candidate, z, 0.0) / 1000
        mean = sum(b * s for b, s in zip(blocks, alive, strict=True))
        var = sum(b * b * s * (1 - s) for b, s in zip(blocks, alive, strict=True))
        gaussian = min(sum(blocks), mean + z * math.sqrt(var))
        errors.append(abs(found - exact) / sum(blocks))
        gaussian_errors.append(abs(gaussian - exact) / sum(blocks))
    assert fmean(errors) < 0.07
    assert fmean(errors) < fmean(gaussian_errors)


def test_what_still_runs_counts_as_running() -> None:
    """Ten alike, of which those that ended have left the sums: the rest hold what they hold."""
    made = profile(0, log_normal(100, 0.6), 0, 16, 1_000, 10_000, 0)
    sums = PoolSums()
    for _ in range(10):
        sums.add(made)
    sums.advance(9)
    raw, given = sums.view(), conditioned(sums.view())
    assert raw.mean[0] < 0.7 * raw.top[0]
    assert given.mean[0] == raw.top[0]
    assert given.var[0] == 0
    # For requests that are alike it is the exact conditional profile.
    exact = profile(0, log_normal(100, 0.6), 90, 16, 1_000, 10_000, 90_000)
    for index in range(1, 40):
        assert given.mean[index] == pytest.approx(
            10 * exact.mean_milliblocks[index], rel=0.02, abs=9
        )
        assert given.var[index] == pytest.approx(10 * exact.var[index], rel=0.03, abs=2e5)
    assert given.top == raw.top


def test_certain_sums_need_no_conditioning() -> None:
    sums = PoolSums()
    sums.add(running_profile(160))
    assert conditioned(sums.view()) == sums.view()
    assert conditioned(EMPTY_SUMS) == EMPTY_SUMS


@given(st.lists(profiles, max_size=12), st.integers(0, 60))
def test_conditioning_never_lowers_and_never_passes_what_all_hold(
    some: list[Profile], passed: int
) -> None:
    sums = PoolSums()
    for one in some:
        sums.add(one.starting(0))
    sums.advance(passed)
    raw, given = sums.view(), conditioned(sums.view())
    for before, after, top in zip(raw.mean, given.mean, raw.top, strict=True):
        assert before - 1 <= after <= top
    assert all(var >= 0 for var in given.var)


def test_a_later_candidate_meets_the_bins_of_its_own_time() -> None:
    sums = PoolSums()
    sums.add(running_profile(100))
    late = running_profile(100, now_us=20 * 10_000)
    alone = peak(EMPTY_SUMS, late, 1.0, 0.0)
    assert peak(sums.view(), late, 1.0, 0.0) == alone
    assert peak(sums.view(), running_profile(100), 1.0, 0.0) == 2 * alone


def test_sums_of_a_large_pool_fit_in_53_bits() -> None:
    """So that a store whose numbers are doubles keeps them exact."""
    biggest = profile(4_000, Survival((0.5,) * 32), 0, 16, 30_000, 30_000 * 512, 0)
    sums = PoolSums()
    for _ in range(1_000):
        sums.add(biggest)
    found = sums.view()
    assert max(map(abs, (*found.mean, *found.var, *found.third, *found.top))) < 2**53


def test_the_drain_is_the_bin_from_which_on_there_is_room() -> None:
    sums = PoolSums()
    sums.add(Profile(0, (*(50_000,) * 10, *(20_000,) * 54), (0,) * 64))
    assert drained_by(sums.view(), 30_000, 60_000) == 10
    assert drained_by(sums.view(), 10_000, 60_000) == 0
    assert drained_by(sums.view(), 50_000, 60_000) is None
