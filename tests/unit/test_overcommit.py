"""Overcommit: z tends to the quantile that it promises, preemptions raise it, AIMD limits a worker
that the model does not describe."""

import random

from governor.core.overcommit import (
    FIRST_Z,
    MOST_Z,
    ConcurrencyLimit,
    Overcommit,
    OvercommitSettings,
)


def test_exceedances_tend_to_their_target_whatever_the_spread_really_is() -> None:
    for real_deviation in (5_000, 20_000):
        rng = random.Random(3)
        learner = Overcommit(OvercommitSettings(exceed_target=0.05))
        for _ in range(6_000):
            held = int(rng.gauss(100_000, real_deviation))
            learner.held(held, 100_000, 10_000**2)
        before = learner.exceedances
        for _ in range(6_000):
            held = int(rng.gauss(100_000, real_deviation))
            learner.held(held, 100_000, 10_000**2)
        assert 0.03 < (learner.exceedances - before) / 6_000 < 0.07


def test_z_rises_when_the_pool_holds_more_than_predicted_and_falls_when_less() -> None:
    over, under = Overcommit(OvercommitSettings()), Overcommit(OvercommitSettings())
    start = over.z
    for _ in range(5):
        over.held(200_000, 100_000, 10_000**2)
    for _ in range(300):
        under.held(90_000, 100_000, 10_000**2)
    assert over.z > start > under.z
    for _ in range(10_000):
        over.held(900_000, 100_000, 0)
    assert over.z <= MOST_Z


def test_the_shared_error_is_what_the_variance_does_not_explain() -> None:
    rng = random.Random(5)
    explained, correlated = Overcommit(OvercommitSettings()), Overcommit(OvercommitSettings())
    for _ in range(3_000):
        explained.held(int(rng.gauss(100_000, 10_000)), 100_000, 10_000**2)
        correlated.held(int(rng.gauss(100_000, 31_600)), 100_000, 10_000**2)
    assert explained.sigma_c < 0.15
    assert 0.2 < correlated.sigma_c < 0.4


def test_preemptions_above_their_target_raise_z_and_their_absence_lets_it_fall_back() -> None:
    learner = Overcommit(OvercommitSettings())
    start = learner.z
    for _ in range(5):
        learner.preempted(2, 50)
    raised = learner.z
    assert raised > start + 0.5
    for _ in range(20):
        learner.preempted(0, 50)
    assert learner.z == start


def test_preemptions_at_their_target_leave_z_where_it_is() -> None:
    learner = Overcommit(OvercommitSettings())
    for _ in range(100):
        learner.preempted(1, 100)
    assert abs(learner.z - FIRST_Z) < 1e-6


def test_a_quiet_scrape_teaches_nothing() -> None:
    learner = Overcommit(OvercommitSettings())
    learner.preempted(0, 0)
    learner.held(10, 0, 0)
    assert learner.observed == 0


def test_persistent_disagreement_brings_the_limit_and_agreement_lifts_it() -> None:
    limit = ConcurrencyLimit()
    for _ in range(4):
        limit.scraped(disagrees=True, distress=False, in_flight=8)
    assert limit.limit is None
    limit.scraped(disagrees=True, distress=False, in_flight=8)
    assert limit.limit == 8
    limit.scraped(disagrees=True, distress=True, in_flight=8)
    assert limit.limit == 6
    limit.scraped(disagrees=True, distress=False, in_flight=6)
    assert limit.limit == 7
    for _ in range(5):
        limit.scraped(disagrees=False, distress=False, in_flight=7)
    assert limit.limit is None


def test_one_disagreeing_scrape_is_noise() -> None:
    limit = ConcurrencyLimit()
    for index in range(40):
        limit.scraped(disagrees=index % 5 != 4, distress=True, in_flight=8)
    assert limit.limit is None


def test_the_limit_never_falls_below_one() -> None:
    limit = ConcurrencyLimit()
    for _ in range(50):
        limit.scraped(disagrees=True, distress=True, in_flight=1)
    assert limit.limit == 1
