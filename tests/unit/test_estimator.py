"""The running forecast: censoring, shrinkage to the prior, the loop component, bounded state."""

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.estimator import Observation, RunningEstimator, answer_ending, thinking_ending
from governor.core.forecast import GRID_TOKENS
from governor.core.hazard import Ending, LengthTable, Prior
from governor.core.outcomes import Cause, WrapUpReason

P50, SIGMA = 800.0, 1.0


def ended(tokens: int, answer: int = 100, model: str = "m") -> Observation:
    return Observation(model, None, tokens, answer, Cause.COMPLETED)


def landed(tokens: int, reason: WrapUpReason, answer: int = 100) -> Observation:
    return Observation("m", None, tokens, answer, Cause.WRAPPED_UP, reason)


def lengths(count: int, seed: int = 7) -> list[int]:
    chance = random.Random(seed)
    return [round(chance.lognormvariate(math.log(P50), SIGMA)) for _ in range(count)]


def true_quantile(q_normal: float) -> float:
    return P50 * math.exp(SIGMA * q_normal)


def test_uncensored_lengths_give_their_own_quantiles() -> None:
    estimator = RunningEstimator()
    for length in lengths(2000):
        estimator.learn(ended(length))
    natural = estimator.forecast("m", None).natural
    assert natural.quantile(0.5) == pytest.approx(P50, rel=0.12)
    assert natural.quantile(0.9) == pytest.approx(true_quantile(1.2816), rel=0.15)


@pytest.mark.parametrize(
    "reason",
    [
        WrapUpReason.BUDGET_SPENT,
        WrapUpReason.DEADLINE,
        WrapUpReason.PRESSURE,
        WrapUpReason.OPERATOR,
    ],
)
def test_landed_lengths_are_at_least_and_taking_them_as_ends_is_biased(
    reason: WrapUpReason,
) -> None:
    """Half of the requests have a budget of 700 tokens, below the median."""
    aware, naive = RunningEstimator(decay=1.0), RunningEstimator(decay=1.0)
    for index, length in enumerate(lengths(3000)):
        cut = index % 2 == 0 and length > 700
        aware.learn(landed(700, reason) if cut else ended(length))
        naive.learn(ended(700 if cut else length))
    truth = true_quantile(1.2816)
    assert aware.forecast("m", None).natural.quantile(0.5) == pytest.approx(P50, rel=0.06)
    assert aware.forecast("m", None).natural.quantile(0.9) == pytest.approx(truth, rel=0.1)
    assert naive.forecast("m", None).natural.quantile(0.9) < 0.8 * truth
    assert naive.forecast("m", None).natural.quantile(0.5) < 0.9 * P50


def test_clients_that_leave_at_random_do_not_shorten_the_estimate() -> None:
    aware, naive = RunningEstimator(decay=1.0), RunningEstimator(decay=1.0)
    chance = random.Random(3)
    for length in lengths(3000):
        left = round(chance.expovariate(1 / 1500))
        gone = left < length
        seen = Observation("m", None, left, 0, Cause.CLIENT_GONE) if gone else ended(length)
        aware.learn(seen)
        naive.learn(ended(min(left, length)))
    assert aware.forecast("m", None).natural.quantile(0.5) == pytest.approx(P50, rel=0.08)
    assert naive.forecast("m", None).natural.quantile(0.5) < 0.75 * P50


def test_a_budget_that_lands_everybody_leaves_the_tail_to_the_prior() -> None:
    estimator = RunningEstimator()
    for _ in range(500):
        estimator.learn(landed(300, WrapUpReason.BUDGET_SPENT))
    natural = estimator.forecast("m", None).natural
    prior = RunningEstimator().forecast("m", None).natural
    assert natural.at(293) > 0.98
    assert natural.at(4005) / natural.at(392) == pytest.approx(
        prior.at(4005) / prior.at(392), rel=0.02
    )


def test_without_evidence_the_forecast_is_the_prior_of_the_effort() -> None:
    estimator = RunningEstimator()
    default = estimator.forecast("m", None)
    # 0.79 of ServeGen's p50 807 and p90 4,165 output tokens.
    assert default.natural.quantile(0.5) == pytest.approx(0.79 * 807, rel=0.03)
    assert default.natural.quantile(0.9) == pytest.approx(0.79 * 4165, rel=0.03)
    assert default.answer.quantile(0.5) == pytest.approx(0.21 * 807, rel=0.03)
    assert default.loop_probability == pytest.approx(0.01)
    assert default.fallback
    medians = [
        estimator.forecast("m", word).natural.quantile(0.5)
        for word in ("minimal", "low", "medium", "high", "xhigh")
    ]
    assert medians == sorted(set(medians))
    assert estimator.forecast("m", "no such word") == default


def test_evidence_outweighs_the_prior_step_by_step() -> None:
    estimator = RunningEstimator()
    distances = []
    for _ in range(40):
        distances.append(estimator.forecast("m", None).natural.at(122))
        estimator.learn(ended(60))
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 0.1
    assert not estimator.forecast("m", None).fallback


def test_estimate_is_the_weighted_mean_of_prior_and_data_without_censoring() -> None:
    table = LengthTable()
    prior_survival = RunningEstimator().forecast("m", None).natural
    for length in (10, 30, 30, 500, 9_000, 9_000):
        table.add(length, Ending.NATURAL, decay=1.0)
    survival, loops = table.estimate(Prior(prior_survival, 0.0, 2.0))
    for index, point in enumerate(GRID_TOKENS):
        above = sum(length > point for length in (10, 30, 30, 500, 9_000, 9_000))
        assert survival.values[index] == pytest.approx((above + 2 * prior_survival.at(point)) / 8)
    assert loops == 0.0


def test_loop_landings_label_the_loop_component_and_leave_natural_lengths_alone() -> None:
    estimator = RunningEstimator(decay=1.0)
    plain = RunningEstimator(decay=1.0)
    chance = random.Random(5)
    for length in lengths(1800):
        estimator.learn(ended(length))
        plain.learn(ended(length))
        if chance.random() < 1 / 9:
            estimator.learn(landed(length, WrapUpReason.LOOP))
    forecast = estimator.forecast("m", None)
    assert forecast.loop_probability == pytest.approx(0.1, abs=0.015)
    assert forecast.natural.quantile(0.5) == pytest.approx(
        plain.forecast("m", None).natural.quantile(0.5), rel=0.05
    )


def test_loops_cut_by_a_budget_before_they_show_do_not_hide() -> None:
    """One in five loops, seen at 900 tokens, but every second request is landed at 500."""
    estimator = RunningEstimator(decay=1.0)
    for index in range(4000):
        loops, budget = index % 5 == 0, index % 2 == 0
        if loops:
            seen = (500, WrapUpReason.BUDGET_SPENT) if budget else (900, WrapUpReason.LOOP)
            estimator.learn(landed(*seen))
        else:
            estimator.learn(ended(100 + index % 200))
    assert estimator.forecast("m", None).loop_probability == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize("reason", [WrapUpReason.CONVERGED, WrapUpReason.LOW_VALUE])
def test_early_exits_say_nothing_of_natural_length(reason: WrapUpReason) -> None:
    estimator = RunningEstimator()
    before = estimator.forecast("m", None).natural
    for _ in range(50):
        estimator.learn(landed(20, reason, answer=40))
    after = estimator.forecast("m", None)
    assert after.natural == before
    assert after.answer.quantile(0.5) < 100


def test_a_refused_request_teaches_nothing() -> None:
    estimator = RunningEstimator()
    estimator.learn(Observation("m", None, 0, 0, Cause.REFUSED))
    assert estimator.state()["keys"] == []


@pytest.mark.parametrize(
    ("observation", "thinking", "answer"),
    [
        (ended(50), Ending.NATURAL, Ending.NATURAL),
        (Observation("m", None, 50, 9, Cause.CUT_OFF), Ending.NATURAL, Ending.CENSORED),
        (Observation("m", None, 50, 0, Cause.CUT_OFF), Ending.CENSORED, None),
        (Observation("m", None, 50, 9, Cause.CLIENT_GONE), Ending.NATURAL, Ending.CENSORED),
        (Observation("m", None, 0, 0, Cause.TIMED_OUT), None, None),
        (Observation("m", None, None, 9, Cause.COMPLETED), None, Ending.NATURAL),
        (landed(50, WrapUpReason.LOOP), Ending.LOOP, Ending.NATURAL),
        (landed(50, WrapUpReason.DEADLINE), Ending.CENSORED, Ending.NATURAL),
    ],
)
def test_what_an_ending_says_of_each_part(
    observation: Observation, thinking: Ending | None, answer: Ending | None
) -> None:
    assert thinking_ending(observation) is thinking
    assert answer_ending(observation) is answer


def test_old_evidence_fades() -> None:
    estimator = RunningEstimator()
    for length in [4000] * 1000 + [100] * 1500:
        estimator.learn(ended(length))
    assert estimator.forecast("m", None).natural.quantile(0.9) < 150


def test_the_least_recently_used_pair_leaves_first() -> None:
    estimator = RunningEstimator(max_keys=3)
    for model in ("a", "b", "c"):
        estimator.learn(ended(50, model=model))
    estimator.forecast("a", None)
    estimator.learn(ended(50, model="d"))
    assert [key["model"] for key in estimator.state()["keys"]] == ["c", "a", "d"]


def test_reading_unknown_pairs_keeps_nothing() -> None:
    estimator = RunningEstimator(max_keys=2)
    for index in range(100):
        estimator.forecast(f"model-{index}", None)
    assert estimator.state()["keys"] == []


@given(
    st.lists(
        st.builds(
            Observation,
            st.sampled_from(["a", "b"]),
            st.sampled_from([None, "low"]),
            st.none() | st.integers(0, 200_000),
            st.integers(0, 200_000),
            st.sampled_from(list(Cause)),
            st.none() | st.sampled_from(list(WrapUpReason)),
        ),
        max_size=30,
    )
)
def test_any_history_gives_a_valid_forecast_and_survives_json(
    history: list[Observation],
) -> None:
    estimator = RunningEstimator()
    for observation in history:
        estimator.learn(observation)
    restored = RunningEstimator.from_state(json.loads(json.dumps(estimator.state())))
    for model in ("a", "b", "unknown"):
        for effort in (None, "low"):
            forecast = estimator.forecast(model, effort)
            assert 0.0 <= forecast.loop_probability <= 1.0
            assert restored.forecast(model, effort) == forecast
    assert restored.state() == estimator.state()


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"schema": "other"},
        {"schema": "governor.estimator/v1", "max_keys": 4, "decay": 0.9, "keys": [{}]},
        {"schema": "governor.estimator/v1", "max_keys": 0, "decay": 0.9, "keys": []},
    ],
)
def test_a_foreign_state_is_refused(state: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        RunningEstimator.from_state(state)


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ValueError, match="token counts"):
        RunningEstimator().learn(ended(-1))
