"""Decision records: plain JSON and back, one canonical text, replay bit for bit, golden files."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from governor.core.admission import AdmissionSettings, Decision, TenantUsage, decide
from governor.core.budget import BudgetGrant
from governor.core.demand import Demand, ThinkingAsk
from governor.core.fleet import FleetView, WorkerLoad, WorkerView
from governor.core.forecast import FORECAST_SCHEMA, GRID_TOKENS, Forecast, Survival, held
from governor.core.headroom import PoolSums, SumsView, profile
from governor.core.outcomes import Outcome, Priority, Reason
from governor.core.plain import PlainInvalid, canonical_json, from_json, from_plain, to_plain
from governor.core.policy import TenantPolicy
from governor.core.record import DecisionRecord, GrantInputs, disagreements, record_of, replay

GOLDEN = Path(__file__).parents[1] / "data/contracts"
SECOND = 1_000_000


@st.composite
def forecasts(draw: st.DrawFn) -> Forecast:
    natural, answer = draw(st.floats(50, 20_000)), draw(st.floats(10, 2_000))
    return Forecast(
        FORECAST_SCHEMA,
        "test",
        Survival(tuple(2.0 ** (-point / natural) for point in GRID_TOKENS)),
        Survival(tuple(2.0 ** (-point / answer) for point in GRID_TOKENS)),
        draw(st.floats(0, 0.5)),
        draw(st.booleans()),
    )


@st.composite
def demands(draw: st.DrawFn) -> Demand:
    ask = ThinkingAsk(
        effort=draw(st.none() | st.sampled_from(["none", "low", "high"])),
        budget_tokens=draw(st.none() | st.integers(0, 20_000)),
        min_tokens=draw(st.none() | st.integers(0, 500)),
    )
    return Demand(
        decision_id=draw(st.text(max_size=8)),
        tenant="tenant",
        model="m",
        arrived_us=draw(st.integers(0, 10 * SECOND)),
        prompt_tokens=draw(st.integers(1, 5_000)),
        max_completion_tokens=draw(st.none() | st.integers(1, 20_000)),
        ask=ask,
        priority=draw(st.sampled_from(list(Priority))),
        deadline_us=draw(st.none() | st.integers(0, 60 * SECOND)),
        temperature=draw(st.none() | st.floats(0, 2)),
    )


def sums_of(draw: st.DrawFn, view: WorkerView, now_us: int) -> SumsView:
    """The sums of a few requests that run on a worker."""
    sums = PoolSums(now_us // view.bin_us)
    for _ in range(draw(st.integers(0, 20))):
        forecast = draw(forecasts())
        running = profile(
            draw(st.integers(0, 3_000)),
            held(forecast, draw(st.none() | st.integers(0, 8_000)), 1_000),
            draw(st.integers(0, 2_000)),
            view.block_size,
            view.us_per_token,
            view.bin_us,
            now_us,
        )
        sums.add(running)
    return sums.view()


@st.composite
def loads(draw: st.DrawFn, worker_id: str, now_us: int) -> WorkerLoad:
    view = WorkerView(
        worker_id=worker_id,
        epoch="e",
        models=("m", "other"),
        capacity_blocks=draw(st.none() | st.integers(0, 5_000)),
        block_size=draw(st.sampled_from([1, 16])),
        us_per_token=draw(st.integers(100, 50_000)),
        bin_us=draw(st.integers(10_000, 20 * SECOND)),
        scraped_us=draw(st.none() | st.integers(now_us - 10 * SECOND, now_us)),
        waiting=draw(st.none() | st.integers(0, 5)),
        draining=draw(st.booleans()),
        max_model_len=draw(st.none() | st.integers(1, 40_000)),
    )
    return WorkerLoad(
        view,
        sums=sums_of(draw, view, now_us),
        in_flight=draw(st.integers(0, 30)),
        external_blocks=draw(st.integers(0, 100)),
        z=draw(st.floats(0, 4)),
        sigma_c=draw(st.floats(0, 0.5)),
        overcommitted=draw(st.booleans()),
    )


@st.composite
def decided(draw: st.DrawFn) -> tuple[Decision, DecisionRecord]:
    now_us = draw(st.integers(10 * SECOND, 60 * SECOND))
    demand, forecast = draw(demands()), draw(forecasts())
    policy = TenantPolicy(
        max_budget_tokens=draw(st.none() | st.integers(0, 20_000)),
        max_concurrent=draw(st.none() | st.integers(0, 20)),
        kv_area_per_minute=draw(st.none() | st.integers(0, 10**9)),
        long_task_share=draw(st.floats(0, 1)),
    )
    names = draw(st.lists(st.sampled_from("abcd"), unique=True, max_size=4))
    fleet = FleetView(tuple(draw(loads(name, now_us)) for name in sorted(names)))
    excluded = frozenset(draw(st.lists(st.sampled_from("abcd"), max_size=2)))
    preferred = draw(st.none() | st.sampled_from("abcd"))
    usage = TenantUsage(draw(st.integers(0, 20)), draw(st.none() | st.integers(-(10**9), 10**9)))
    inputs = GrantInputs(
        wrap_up_tokens=draw(st.integers(0, 50)),
        max_model_len=draw(st.none() | st.integers(1, 40_000)),
        us_per_token=draw(st.none() | st.integers(1, 50_000)),
        price=draw(st.floats(0, 10)),
        now_us=now_us,
        unlanded_draw=draw(st.floats(0, 1, exclude_max=True)),
    )
    granted = inputs.grant(demand, policy, forecast)
    chance = draw(st.floats(0, 1, exclude_max=True))
    rules = AdmissionSettings()
    decision = decide(
        demand,
        granted,
        forecast,
        policy,
        fleet,
        usage,
        now_us,
        chance,
        rules,
        preferred_worker=preferred,
        excluded=excluded,
    )
    record = record_of(
        decision,
        demand=demand,
        policy=policy,
        policy_hash="sha256:0",
        code_version="0.1.0",
        forecast=forecast,
        grant_inputs=inputs,
        grant=granted,
        settings=rules,
        fleet=fleet,
        preferred_worker=preferred,
        excluded=excluded,
        ledger_version=draw(st.none() | st.integers(0, 10**6)),
    )
    return decision, record


@settings(deadline=None)
@given(decided())
def test_a_recorded_decision_replays_bit_for_bit_after_json(
    case: tuple[Decision, DecisionRecord],
) -> None:
    decision, record = case
    text = canonical_json(record)
    restored = from_json(DecisionRecord, text)
    assert restored == record
    assert canonical_json(restored) == text
    assert replay(restored) == decision
    assert disagreements(restored) == ()


@settings(deadline=None)
@given(decided())
def test_a_record_that_was_changed_is_found_out(case: tuple[Decision, DecisionRecord]) -> None:
    _, record = case
    assert "area" in disagreements(replace(record, area=record.area + 1))
    other = Outcome.SHED if record.result is not Outcome.SHED else Outcome.ADMIT
    assert "result" in disagreements(replace(record, result=other))
    assert "reason" in disagreements(replace(record, reason=Reason.BYPASS))
    grant = replace(record.grant, answer_reserve_tokens=record.grant.answer_reserve_tokens + 1)
    assert "grant" in disagreements(replace(record, grant=grant))


def test_canonical_text_has_sorted_keys_no_spaces_and_shortest_floats() -> None:
    text = canonical_json(ThinkingAsk(budget_tokens=5))
    keys = list(json.loads(text))
    assert keys == sorted(keys)
    assert " " not in text
    assert canonical_json((0.1, 1e22, 3)) == "[0.1,1e+22,3]"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), (1, float("nan")), b"x", {"a": 1}])
def test_what_json_does_not_have_is_refused(value: object) -> None:
    with pytest.raises(PlainInvalid):
        to_plain(value)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"ask": {"budget_tokens": "5"}}, "ask.budget_tokens"),
        ({"ask": {"budget_tokens": True}}, "ask.budget_tokens"),
        ({"ask": {"strictness": "soft"}}, "ask.strictness"),
        ({"ask": 3}, "ask"),
        ({"prompt_tokens": 1.5}, "prompt_tokens"),
        ({"colour": "blue"}, "value"),
        ({"tenant": None}, "tenant"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], where: str) -> None:
    plain = to_plain(Demand("id", "t", "m", 0, 10))
    assert isinstance(plain, dict)
    with pytest.raises(PlainInvalid, match=f"^{where}: "):
        from_plain(Demand, {**plain, **change})


def test_a_missing_field_takes_its_default_and_a_required_one_is_named() -> None:
    least = {"decision_id": "id", "tenant": "t", "model": "m", "arrived_us": 0, "prompt_tokens": 1}
    assert from_plain(Demand, least) == Demand("id", "t", "m", 0, 1)
    del least["tenant"]
    with pytest.raises(PlainInvalid, match="missing fields: tenant"):
        from_plain(Demand, least)


def test_values_that_the_type_refuses_are_refused() -> None:
    with pytest.raises(PlainInvalid, match=r"natural: need 32 survival values"):
        from_json(Forecast, '{"schema":"s","artefact":"a","natural":{"values":[1.0]},'
                  '"answer":{"values":[]},"loop_probability":0.0,"fallback":true}')  # fmt: skip


def test_text_that_is_not_json_is_refused() -> None:
    with pytest.raises(PlainInvalid, match="not JSON"):
        from_json(Demand, "{")


@pytest.mark.parametrize(("name", "wanted"), [("forecast", Forecast), ("grant", BudgetGrant)])
def test_golden_files_decode_and_encode_byte_for_byte(name: str, wanted: type[object]) -> None:
    text = (GOLDEN / f"{name}.json").read_text(encoding="utf-8")
    assert canonical_json(from_json(wanted, text)) + "\n" == text


def without_additions(encoded: object, golden: object) -> object:
    """`encoded` without the members that `golden` does not have."""
    if isinstance(golden, dict) and isinstance(encoded, dict):
        kept = {key: value for key, value in encoded.items() if key in golden}
        return {key: without_additions(value, golden[key]) for key, value in kept.items()}
    if isinstance(golden, list) and isinstance(encoded, list) and len(golden) == len(encoded):
        return [without_additions(*pair) for pair in zip(encoded, golden, strict=True)]
    return encoded


def test_the_golden_record_encodes_byte_for_byte_but_for_members_added_with_a_default() -> None:
    """A record holds the whole policy, which may grow: old records stay readable, and unchanged."""
    text = (GOLDEN / "decision_record.json").read_text(encoding="utf-8")
    encoded = json.loads(canonical_json(from_json(DecisionRecord, text)))
    known = without_additions(encoded, json.loads(text))
    assert json.dumps(known, sort_keys=True, separators=(",", ":")) + "\n" == text


def test_the_golden_record_still_replays() -> None:
    text = (GOLDEN / "decision_record.json").read_text(encoding="utf-8")
    record = from_json(DecisionRecord, text)
    assert disagreements(record) == ()
    assert record.result is Outcome.ADMIT
