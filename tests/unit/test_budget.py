"""The precedence table of budgets: one example per line, then the properties that always hold."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from governor.core.budget import SAFE_CUT_FRACTION, BudgetGrant, grant
from governor.core.demand import Demand, ThinkingAsk
from governor.core.forecast import FORECAST_SCHEMA, GRID_TOKENS, Forecast, Survival
from governor.core.outcomes import GrantReason, Strictness
from governor.core.policy import LandingPolicy, TenantPolicy

SECOND = 1_000_000


def uniform(longest: int) -> Survival:
    """Lengths spread evenly over 0 … longest."""
    return Survival(tuple(max(0.0, 1.0 - point / longest) for point in GRID_TOKENS))


# Median 10,000 thinking tokens (safe-cut floor 1,400), answers of 190 tokens.
ANSWER = Survival((1.0,) * len(GRID_TOKENS), 190)
FORECAST = Forecast(FORECAST_SCHEMA, "test", uniform(20_000), ANSWER, 0.0, fallback=False)
FLOOR = 1_400
POLICY = TenantPolicy(landing=LandingPolicy(unlanded_share=0.0))


def demand_of(ask: ThinkingAsk | None = None, **changes: Any) -> Demand:
    demand = Demand("id", "tenant", "m", arrived_us=0, prompt_tokens=100, ask=ask or ThinkingAsk())
    return replace(demand, **changes)


def granted(
    ask: ThinkingAsk | None = None,
    policy: TenantPolicy = POLICY,
    forecast: Forecast = FORECAST,
    *,
    demand: Demand | None = None,
    **changes: Any,
) -> BudgetGrant:
    arguments: dict[str, Any] = {
        "wrap_up_tokens": 5,
        "max_model_len": None,
        "us_per_token": None,
        "price": 0.0,
        "now_us": 0,
        "unlanded_draw": 0.5,
    }
    return grant(demand or demand_of(ask), policy, forecast, **{**arguments, **changes})


def line(found: BudgetGrant) -> tuple[int | None, GrantReason]:
    return found.thinking_tokens, found.reason


def test_nobody_said_anything() -> None:
    found = granted()
    assert line(found) == (None, GrantReason.UNLIMITED)
    assert found.natural_tokens is None
    assert found.engine_budget_tokens is None
    assert found.held_thinking_tokens is None
    assert not found.thinking_off


def test_the_clients_number() -> None:
    found = granted(ThinkingAsk(budget_tokens=3_000))
    assert line(found) == (3_000, GrantReason.CLIENT_BUDGET)
    assert found.asked_tokens == 3_000


def test_the_clients_effort_word() -> None:
    found = granted(ThinkingAsk(effort="low"))
    assert line(found) == (2_048, GrantReason.CLIENT_EFFORT)
    assert found.asked_tokens == 2_048


def test_a_number_wins_over_a_word() -> None:
    found = granted(ThinkingAsk(effort="high", budget_tokens=3_000))
    assert line(found) == (3_000, GrantReason.CLIENT_BUDGET)


def test_the_effort_without_a_budget_of_its_own_is_not_given_the_default() -> None:
    policy = replace(POLICY, default_budget_tokens=4_000, max_budget_tokens=9_000)
    found = granted(ThinkingAsk(effort="max"), policy)
    assert line(found) == (9_000, GrantReason.POLICY_MAXIMUM)


@pytest.mark.parametrize("ask", [ThinkingAsk(), ThinkingAsk(effort="no such word")])
def test_the_policy_default_when_the_client_says_nothing_usable(ask: ThinkingAsk) -> None:
    found = granted(ask, replace(POLICY, default_budget_tokens=4_000))
    assert line(found) == (4_000, GrantReason.POLICY_DEFAULT)


def test_the_policy_maximum_bounds_the_client_and_the_default() -> None:
    policy = replace(POLICY, default_budget_tokens=9_000, max_budget_tokens=5_000)
    assert line(granted(None, policy)) == (5_000, GrantReason.POLICY_MAXIMUM)
    asked = granted(ThinkingAsk(budget_tokens=8_000), policy)
    assert line(asked) == (5_000, GrantReason.POLICY_MAXIMUM)
    assert asked.asked_tokens == 8_000


def test_the_floor_raises_what_policy_set() -> None:
    for policy in (
        replace(POLICY, default_budget_tokens=300),
        replace(POLICY, max_budget_tokens=300),
    ):
        found = granted(None, policy)
        assert line(found) == (FLOOR, GrantReason.SAFE_CUT_FLOOR)
        assert found.floor_tokens == FLOOR
        assert not found.below_floor


def test_the_floor_never_raises_the_clients_cap_and_the_grant_says_so() -> None:
    found = granted(ThinkingAsk(budget_tokens=300))
    assert line(found) == (300, GrantReason.CLIENT_BUDGET)
    assert found.below_floor
    both = granted(ThinkingAsk(budget_tokens=700), replace(POLICY, max_budget_tokens=300))
    assert line(both) == (700, GrantReason.CLIENT_BUDGET)
    assert both.below_floor


def test_a_prior_gives_no_floor() -> None:
    policy = replace(POLICY, default_budget_tokens=300)
    found = granted(None, policy, replace(FORECAST, fallback=True))
    assert line(found) == (300, GrantReason.POLICY_DEFAULT)
    assert found.floor_tokens is None
    assert not found.below_floor


def test_the_floor_is_a_share_of_the_median_that_depends_on_the_model() -> None:
    policy = replace(POLICY, default_budget_tokens=300)
    assert granted(None, policy, safe_cut_fraction=0.05).thinking_tokens == 500
    assert SAFE_CUT_FRACTION == 0.14


def test_the_price_shrinks_a_grant_to_the_median_and_below() -> None:
    assert line(granted(price=1.0)) == (10_000, GrantReason.PRICE)
    assert line(granted(price=3.0)) == (5_000, GrantReason.PRICE)
    assert line(granted(price=1e9)) == (FLOOR, GrantReason.SAFE_CUT_FLOOR)
    small = granted(ThinkingAsk(budget_tokens=2_000), price=1.0)
    assert line(small) == (2_000, GrantReason.CLIENT_BUDGET)


def test_the_clients_minimum_lifts_default_and_price_up_to_the_maximum() -> None:
    ask = ThinkingAsk(min_tokens=6_000)
    policy = replace(POLICY, default_budget_tokens=2_000)
    assert granted(ask, policy).thinking_tokens == 6_000
    assert granted(ask, POLICY, price=9.0).thinking_tokens == 6_000
    bounded = granted(ask, replace(policy, max_budget_tokens=4_000))
    assert line(bounded) == (4_000, GrantReason.POLICY_MAXIMUM)
    own = ThinkingAsk(budget_tokens=3_000, min_tokens=6_000)
    assert granted(own).thinking_tokens == 3_000


def test_the_completion_limit_keeps_the_answer_reserve_free() -> None:
    found = granted(demand=demand_of(max_completion_tokens=2_000))
    assert line(found) == (2_000 - 190, GrantReason.COMPLETION_LIMIT)
    assert found.answer_reserve_tokens == 190
    assert found.completion_tokens == 2_000


def test_the_context_length_is_a_completion_limit_that_is_not_sent() -> None:
    found = granted(max_model_len=2_100)
    assert line(found) == (2_000 - 190, GrantReason.COMPLETION_LIMIT)
    assert found.completion_tokens is None


@pytest.mark.parametrize(
    ("ask", "policy_reserve", "fallback", "completion", "reserve"),
    [
        (ThinkingAsk(answer_reserve_tokens=50), 300, False, 2_000, 50),
        (ThinkingAsk(), 300, False, 2_000, 300),
        (ThinkingAsk(), None, False, 2_000, 190),
        (ThinkingAsk(), None, False, 200, 100),
        (ThinkingAsk(), None, True, 2_000, 190),
        (ThinkingAsk(), None, True, 800, 100),
        (ThinkingAsk(), None, True, None, 190),
        (ThinkingAsk(answer_reserve_tokens=5_000), None, False, 2_000, 2_000),
    ],
)
def test_whose_answer_reserve_counts(
    ask: ThinkingAsk,
    policy_reserve: int | None,
    fallback: bool,
    completion: int | None,
    reserve: int,
) -> None:
    found = granted(
        policy=replace(POLICY, answer_reserve_tokens=policy_reserve),
        forecast=replace(FORECAST, fallback=fallback),
        demand=demand_of(ask, max_completion_tokens=completion),
    )
    assert found.answer_reserve_tokens == reserve


def test_a_reserve_that_takes_everything_switches_thinking_off() -> None:
    ask = ThinkingAsk(answer_reserve_tokens=5_000)
    found = granted(demand=demand_of(ask, max_completion_tokens=2_000))
    assert line(found) == (0, GrantReason.COMPLETION_LIMIT)
    assert found.thinking_off


@pytest.mark.parametrize(
    ("demand", "deadline_s", "reason"),
    [
        (demand_of(deadline_us=10 * SECOND), None, GrantReason.CLIENT_DEADLINE),
        (demand_of(ThinkingAsk(budget_us=10 * SECOND)), None, GrantReason.CLIENT_DEADLINE),
        (demand_of(), 10.0, GrantReason.POLICY_DEADLINE),
    ],
)
def test_time_becomes_tokens_answer_included(
    demand: Demand, deadline_s: float | None, reason: GrantReason
) -> None:
    policy = replace(POLICY, deadline_s=deadline_s)
    found = granted(policy=policy, demand=demand, us_per_token=5_000, now_us=2 * SECOND)
    assert line(found) == (8 * SECOND // 5_000 - 190, reason)
    late = granted(policy=policy, demand=demand, us_per_token=5_000, now_us=11 * SECOND)
    assert late.thinking_off
    unknown = granted(policy=policy, demand=demand, us_per_token=None, now_us=2 * SECOND)
    assert line(unknown) == (None, GrantReason.UNLIMITED)


def test_the_floor_does_not_buy_time() -> None:
    found = granted(demand=demand_of(deadline_us=SECOND), us_per_token=2_000)
    assert line(found) == (500 - 190, GrantReason.CLIENT_DEADLINE)
    assert found.below_floor


@pytest.mark.parametrize("ask", [ThinkingAsk(budget_tokens=0), ThinkingAsk(effort="none")])
@pytest.mark.parametrize("thinks", [True, False])
def test_a_budget_of_nothing_is_thinking_off(ask: ThinkingAsk, thinks: bool) -> None:
    found = granted(demand=demand_of(ask, thinks=thinks))
    assert line(found) == (0, GrantReason.THINKING_OFF)
    assert found.thinking_off
    assert (found.natural_tokens, found.engine_budget_tokens, found.held_thinking_tokens) == (
        0,
        0,
        0,
    )


@pytest.mark.parametrize(
    ("demand", "policy"),
    [
        (demand_of(ThinkingAsk(budget_tokens=100), thinks=False), POLICY),
        (demand_of(ThinkingAsk(budget_tokens=100), n=2, landable=False), POLICY),
        (demand_of(ThinkingAsk(budget_tokens=100)), replace(POLICY, landing=LandingPolicy(False))),
    ],
)
def test_what_cannot_be_landed_gets_no_budget_and_says_so(
    demand: Demand, policy: TenantPolicy
) -> None:
    found = granted(policy=policy, demand=demand)
    assert line(found) == (None, GrantReason.NOT_GOVERNED)
    assert found.asked_tokens == 100
    assert not found.thinking_off


def test_the_unlanded_share_skips_default_and_price_but_no_hard_cap() -> None:
    policy = replace(
        POLICY,
        default_budget_tokens=2_000,
        max_budget_tokens=9_000,
        landing=LandingPolicy(unlanded_share=0.01),
    )
    picked = granted(None, policy, price=5.0, unlanded_draw=0.005)
    assert line(picked) == (9_000, GrantReason.POLICY_MAXIMUM)
    assert picked.unlanded
    assert not granted(None, policy, unlanded_draw=0.01).unlanded
    asked = granted(ThinkingAsk(budget_tokens=1_500), policy, unlanded_draw=0.005)
    assert line(asked) == (1_500, GrantReason.CLIENT_BUDGET)


@pytest.mark.parametrize("strictness", [Strictness.CAP, Strictness.PROVEN])
def test_inside_the_budget_grace_and_wrap_up_come_out_of_it(strictness: Strictness) -> None:
    found = granted(ThinkingAsk(budget_tokens=2_000), replace(POLICY, strictness=strictness))
    assert found.natural_tokens == found.engine_budget_tokens == 1_995
    assert found.grace_tokens == 200
    assert found.boundary_tokens == 1_795
    assert found.held_thinking_tokens == 2_000


def test_a_small_budget_is_not_spent_on_waiting_for_a_boundary() -> None:
    found = granted(ThinkingAsk(budget_tokens=65))
    assert (found.natural_tokens, found.grace_tokens, found.boundary_tokens) == (60, 15, 45)


def test_with_hint_grace_and_wrap_up_come_after_it() -> None:
    found = granted(ThinkingAsk(budget_tokens=2_000), replace(POLICY, strictness=Strictness.HINT))
    assert found.boundary_tokens == found.engine_budget_tokens == 2_000
    assert found.natural_tokens == 2_200
    assert found.held_thinking_tokens == 2_205


@pytest.mark.parametrize(
    ("client", "policy", "result"),
    [
        (None, Strictness.HINT, Strictness.HINT),
        (Strictness.PROVEN, Strictness.CAP, Strictness.PROVEN),
        (Strictness.HINT, Strictness.CAP, Strictness.CAP),
        (Strictness.CAP, Strictness.HINT, Strictness.CAP),
    ],
)
def test_the_stricter_word_holds(
    client: Strictness | None, policy: Strictness, result: Strictness
) -> None:
    found = granted(ThinkingAsk(strictness=client), replace(POLICY, strictness=policy))
    assert found.strictness is result


@pytest.mark.parametrize(("tokens", "off"), [(4, True), (5, True), (6, False)])
def test_a_cap_that_the_wrap_up_alone_would_fill_switches_thinking_off(
    tokens: int, off: bool
) -> None:
    found = granted(ThinkingAsk(budget_tokens=tokens))
    assert found.thinking_off is off
    assert line(found) == ((0, GrantReason.THINKING_OFF) if off else (6, GrantReason.CLIENT_BUDGET))
    hint = granted(ThinkingAsk(budget_tokens=tokens), replace(POLICY, strictness=Strictness.HINT))
    assert line(hint) == (tokens, GrantReason.CLIENT_BUDGET)


@pytest.mark.parametrize("wrong", [{"wrap_up_tokens": -1}, {"price": -0.1}])
def test_negative_numbers_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be >= 0"):
        granted(**wrong)


counts = st.integers(0, 40_000)
maybe = st.none() | counts


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of `grant` as independent numbers, so that one can be changed alone."""
    return {
        "natural": uniform(draw(st.integers(1, 200_000))),
        "answer": uniform(draw(st.integers(1, 5_000))),
        "fallback": draw(st.booleans()),
        "budget_tokens": draw(maybe),
        "effort": draw(st.none() | st.sampled_from(["none", "low", "high", "max", "odd"])),
        "min_tokens": draw(maybe),
        "client_reserve": draw(st.none() | st.integers(0, 5_000)),
        "client_strictness": draw(st.none() | st.sampled_from(list(Strictness))),
        "completion": draw(maybe),
        "deadline_us": draw(st.none() | st.integers(0, 600 * SECOND)),
        "default": draw(maybe),
        "maximum": draw(maybe),
        "policy_reserve": draw(st.none() | st.integers(0, 5_000)),
        "strictness": draw(st.sampled_from(list(Strictness))),
        "grace_fraction": draw(st.floats(0, 1)),
        "grace_tokens": draw(st.integers(0, 200)),
        "wrap_up_tokens": draw(st.integers(0, 100)),
        "max_model_len": draw(maybe),
        "prompt_tokens": draw(st.integers(0, 20_000)),
        "us_per_token": draw(st.none() | st.integers(0, 100_000)),
        "price": draw(st.floats(0, 100)),
        "unlanded_draw": draw(st.sampled_from([0.0, 0.5])),
        "now_us": draw(st.integers(0, 60 * SECOND)),
    }


def grant_for(case: dict[str, Any]) -> BudgetGrant:
    ask = ThinkingAsk(
        effort=case["effort"],
        budget_tokens=case["budget_tokens"],
        min_tokens=case["min_tokens"],
        answer_reserve_tokens=case["client_reserve"],
        strictness=case["client_strictness"],
    )
    policy = TenantPolicy(
        default_budget_tokens=case["default"],
        max_budget_tokens=case["maximum"],
        answer_reserve_tokens=case["policy_reserve"],
        strictness=case["strictness"],
        landing=LandingPolicy(
            grace_tokens=case["grace_tokens"], grace_fraction=case["grace_fraction"]
        ),
    )
    forecast = Forecast(
        FORECAST_SCHEMA, "test", case["natural"], case["answer"], 0.0, case["fallback"]
    )
    return grant(
        demand_of(
            ask,
            max_completion_tokens=case["completion"],
            deadline_us=case["deadline_us"],
            prompt_tokens=case["prompt_tokens"],
        ),
        policy,
        forecast,
        wrap_up_tokens=case["wrap_up_tokens"],
        max_model_len=case["max_model_len"],
        us_per_token=case["us_per_token"],
        price=case["price"],
        now_us=case["now_us"],
        unlanded_draw=case["unlanded_draw"],
    )


def budget_of(found: BudgetGrant) -> float:
    return float("inf") if found.thinking_tokens is None else found.thinking_tokens


@given(cases())
def test_a_grant_never_exceeds_what_the_client_set(case: dict[str, Any]) -> None:
    found = grant_for(case)
    if case["budget_tokens"] is not None:
        assert budget_of(found) <= case["budget_tokens"]
        if found.strictness is not Strictness.HINT:
            assert found.held_thinking_tokens is not None
            assert found.held_thinking_tokens <= case["budget_tokens"]
    assert found.completion_tokens == case["completion"]


@given(cases())
def test_thinking_wrap_up_and_reserve_fit_the_completion(case: dict[str, Any]) -> None:
    found = grant_for(case)
    for room in (
        case["completion"],
        None if case["max_model_len"] is None else case["max_model_len"] - case["prompt_tokens"],
    ):
        if room is not None and room >= 0:
            assert found.natural_tokens is not None
            used = found.natural_tokens + found.wrap_up_tokens + found.answer_reserve_tokens
            assert used <= room
            assert budget_of(found) <= room - found.answer_reserve_tokens


@given(cases())
def test_no_count_is_negative_and_off_means_zero(case: dict[str, Any]) -> None:
    found = grant_for(case)
    assert min(found.grace_tokens, found.wrap_up_tokens, found.answer_reserve_tokens) >= 0
    assert found.thinking_off == (found.thinking_tokens == 0)
    for count in (found.natural_tokens, found.boundary_tokens, found.engine_budget_tokens):
        assert count is None or count >= 0
        assert (count is None) == (found.thinking_tokens is None)
    if found.thinking_tokens and found.strictness is not Strictness.HINT:
        assert found.natural_tokens is not None
        assert found.natural_tokens > 0
        assert found.natural_tokens + found.wrap_up_tokens == found.thinking_tokens


@given(cases())
def test_a_grant_is_deterministic(case: dict[str, Any]) -> None:
    assert grant_for(case) == grant_for(dict(case))


@pytest.mark.parametrize(
    "name",
    ["budget_tokens", "default", "maximum", "completion", "deadline_us", "max_model_len"],
)
@given(case=cases(), more=st.integers(0, 40_000_000))
def test_a_larger_limit_never_gives_less(name: str, case: dict[str, Any], more: int) -> None:
    assume(case[name] is not None)
    larger = budget_of(grant_for({**case, name: case[name] + more}))
    assert budget_of(grant_for(case)) <= larger
    if name not in ("default", "budget_tokens"):
        assert larger <= budget_of(grant_for({**case, name: None}))


@pytest.mark.parametrize(
    "name",
    ["prompt_tokens", "us_per_token", "price", "client_reserve", "policy_reserve", "now_us"],
)
@given(case=cases(), more=st.integers(0, 40_000))
def test_a_higher_cost_never_gives_more(name: str, case: dict[str, Any], more: int) -> None:
    assume(case[name] is not None)
    assert budget_of(grant_for({**case, name: case[name] + more})) <= budget_of(grant_for(case))


@given(case=cases(), more=st.integers(0, 200))
def test_a_longer_wrap_up_never_gives_more(case: dict[str, Any], more: int) -> None:
    longer = {**case, "wrap_up_tokens": case["wrap_up_tokens"] + more}
    assert budget_of(grant_for(longer)) <= budget_of(grant_for(case))


@given(case=cases(), more=st.integers(0, 40_000))
def test_a_larger_minimum_never_gives_less(case: dict[str, Any], more: int) -> None:
    assume(case["min_tokens"] is not None)
    larger = {**case, "min_tokens": case["min_tokens"] + more}
    assert budget_of(grant_for(case)) <= budget_of(grant_for(larger))
