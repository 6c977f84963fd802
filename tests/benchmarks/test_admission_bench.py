"""The admission benchmark's crowd, its order and fairness from decision times, its figures."""

import itertools
from collections import Counter
from dataclasses import replace

import pytest

from benchmarks.admission import parse, sample_of
from benchmarks.admission_figures import (
    Measured,
    Run,
    Sample,
    fairness,
    figures,
    order_violations,
    wanted,
)
from benchmarks.admission_load import (
    BANDS,
    EARLY,
    GOLD,
    ITEMS,
    REQUESTS,
    SILVER,
    WEIGHTS,
    Asked,
    Served,
    crowd,
    key_of,
    policy_text,
    without_end,
)
from benchmarks.client import Reply
from governor.adapters.policies_yaml import load_policy
from governor.core.outcomes import Priority
from governor_probes.tiny_reasoner.task import Problem, TaskKind

PROBLEM = Problem(TaskKind.SUM, ("h", "s"), (8, 2), "10")
HIGH, LOW = BANDS


def a_reply(prompt_tokens: int = 10, completion_tokens: int = 20, content: str = "10") -> Reply:
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    return Reply(status=200, content=content, usage=usage, done=True, latency_s=2.0)


def served(
    arrived_s: float,
    dispatched_s: float | None,
    tenant: str = GOLD,
    band: str | None = HIGH,
    reply: Reply | None = None,
) -> Served:
    """One request by its times."""
    dispatched_us = None if dispatched_s is None else round(dispatched_s * 1e6)
    asked = Asked(tenant, band, PROBLEM)
    return Served(asked, reply or a_reply(), round(arrived_s * 1e6), dispatched_us, 400)


def a_run(
    *requests: Served, preemptions: int = 0, usage: float = 0.5, makespan_s: float = 4.0
) -> Run:
    samples = tuple(Sample(at / 2, usage, 4, 0, preemptions) for at in range(12))
    return Run(requests, samples, preemptions, makespan_s)


def test_a_crowd_is_64_requests_evenly_over_tenants_and_bands() -> None:
    early, late = crowd(7)
    assert (early, late) == crowd(7)
    assert late != crowd(8)[1]
    assert len(early) + len(late) == REQUESTS
    assert {(asked.tenant, asked.band) for asked in early} == {(EARLY, None)}
    kinds = Counter((asked.tenant, asked.band) for asked in late)
    assert set(kinds.values()) == {12}
    assert set(kinds) == set(itertools.product(WEIGHTS, BANDS))
    # Each tenant brings the same work: what differs is the policy's doing.
    sizes = {
        kind: sorted(a.problem.items for a in late if (a.tenant, a.band) == kind) for kind in kinds
    }
    assert len(set(map(tuple, sizes.values()))) == 1


def test_endless_requests_of_a_tenant_are_its_own_and_repeatable() -> None:
    first = list(itertools.islice(without_end(GOLD, "0 1"), 30))
    assert first == list(itertools.islice(without_end(GOLD, "0 1"), 30))
    assert first != list(itertools.islice(without_end(GOLD, "0 2"), 30))
    assert {(asked.tenant, asked.band) for asked in first} == {(GOLD, HIGH)}
    assert {asked.problem.items for asked in first} <= set(ITEMS)


def test_the_policy_has_the_weights_and_lets_a_request_ask_for_the_later_band() -> None:
    policy = load_policy(policy_text()).policy
    for tenant, weight in WEIGHTS.items():
        assert policy.caller(key_of(tenant), 0.0).tenant == tenant
        own = policy.tenant(tenant)
        assert own is not None
        assert (own.weight, own.priority) == (weight, Priority.HIGH)
    early = policy.tenant(EARLY)
    assert early is not None
    assert early.priority is Priority.CRITICAL
    assert Asked(GOLD, LOW, PROBLEM).headers["x-governor-priority"] == "low"
    assert "x-governor-priority" not in Asked(EARLY, None, PROBLEM).headers


def test_a_request_without_a_whole_stream_or_answer_is_lost() -> None:
    fine = served(0, 1)
    assert not fine.lost
    assert fine.right
    assert replace(fine, reply=a_reply(content=" \n")).lost
    broken = replace(a_reply(), error="the stream ended without [DONE]")
    assert replace(fine, reply=broken).lost
    assert replace(fine, reply=replace(a_reply(), status=503)).lost


def test_a_later_band_before_a_waiting_earlier_one_is_a_violation() -> None:
    high, low = served(0, 5), served(1, 3, band=LOW)
    assert order_violations(a_run(high, low)) == 1
    assert order_violations(a_run(high, low), of_bands=True) == 1
    assert order_violations(a_run(served(0, 2), low)) == 0
    # It had not come yet.
    assert order_violations(a_run(served(4, 5), low)) == 0
    # It needs more memory, so that the smaller one may pass.
    larger = served(0, 5, reply=a_reply(prompt_tokens=11))
    assert order_violations(a_run(larger, low)) == 0


def test_within_a_band_only_requests_of_one_tenant_have_an_order() -> None:
    assert order_violations(a_run(served(0, 5), served(1, 3))) == 1
    assert order_violations(a_run(served(0, 5), served(1, 3)), of_bands=True) == 0
    assert order_violations(a_run(served(0, 5), served(1, 3, tenant=SILVER))) == 0
    assert order_violations(a_run(served(0, 3), served(1, 5))) == 0
    assert order_violations(a_run(served(0, None), served(1, 3))) == 0


def test_fairness_counts_areas_only_while_both_wait() -> None:
    # 10 prompt and 20 output tokens: 10 · 20 + 20 · 21 / 2 = 410 token².
    requests = [
        served(0, 1),
        served(0, 2),
        served(0, 3, tenant=SILVER),
        served(0, 4),
        served(0, 5),
        served(0, 6, tenant=SILVER),
        # From here on one tenant has nothing left.
        served(0, 7),
        served(0, 8),
    ]
    found = fairness(a_run(*requests))
    assert found is not None
    assert found.dispatches == 6
    assert found.gold[-1] == 4 * 410
    assert found.silver[-1] == 2 * 410
    assert found.gold_share == pytest.approx(2 / 3)
    # Two of weight 2, then one of weight 1: 410 up, 410 down.
    assert found.gap_area == 410
    assert found.largest_area == 410


def test_an_unfair_run_shows_a_gap_and_another_share() -> None:
    requests = [served(0, at) for at in (1, 2, 3, 4)]
    requests += [served(0, 5), served(0, 6, tenant=SILVER), served(0, 7, tenant=SILVER)]
    found = fairness(a_run(*requests))
    assert found is not None
    assert found.gold_share == 1.0
    assert found.gap_area == pytest.approx(5 * 410 / 2)


def test_tenants_that_never_wait_together_say_nothing_of_fairness() -> None:
    assert fairness(a_run(served(0, 1), served(2, 3, tenant=SILVER))) is None
    assert fairness(a_run(served(0, 2), served(0, 2, tenant=SILVER, band=LOW))) is None


def test_usage_while_queued_ends_with_the_last_dispatch() -> None:
    samples = (Sample(0.5, 0.8, 1, 0, 0), Sample(1.5, 0.6, 1, 0, 0), Sample(9.0, 0.1, 1, 0, 0))
    run = Run((served(100, 100), served(100, 102)), samples, 0, 10.0)
    assert run.usage_mean_queued == pytest.approx(0.7)
    assert run.usage_mean == pytest.approx(0.5)
    assert run.usage_peak == 0.8
    assert replace(run, served=(served(100, 100.001),)).usage_mean_queued is None


def a_measurement(on_preemptions: int = 0, off_preemptions: int = 9) -> Measured:
    requests = [served(0, 1), served(0, 2, tenant=SILVER), served(0, 3), served(0, 3.5)]
    requests += [served(0, 4, tenant=SILVER), served(0, 6, band=LOW)]
    on = a_run(*requests, preemptions=on_preemptions, makespan_s=6.0)
    off = a_run(*requests, preemptions=off_preemptions, makespan_s=4.0)
    even = itertools.cycle((GOLD, GOLD, SILVER))
    loop = a_run(*(served(0, at, tenant=next(even)) for at in range(1, 31)))
    return Measured((on, on), (off, off), (on,), loop)


def test_figures_total_what_must_be_zero_and_take_medians_of_the_rest() -> None:
    found = figures(a_measurement(on_preemptions=3))
    assert found["preemptions_on"] == 6
    assert found["preemptions_on_cold"] == 3
    assert found["preemptions_off"] == 9
    assert found["makespan_ratio"] == pytest.approx(1.5)
    assert found["wait_p50_high_s"] == 3
    assert found["wait_p50_low_s"] == 6
    assert found["lost_on"] == 0
    assert found["accuracy_on"] == 1.0
    without_cold = figures(replace(a_measurement(), cold=()))
    assert without_cold["preemptions_on_cold"] is None
    with pytest.raises(ValueError, match="no rounds"):
        figures(replace(a_measurement(), on=(), off=()))


def test_each_target_is_missed_by_its_own_fault() -> None:
    fine = figures(a_measurement())
    assert all(wanted(fine).values())
    faults: list[dict[str, float | None]] = [
        {"lost_on": 1},
        {"loop_lost": 1},
        {"preemptions_on": 1},
        {"preemptions_off_min": 0},
        {"loop_preempted_share": 0.02},
        {"order_violations": 1},
        {"wait_mean_low_s": 0.1},
        {"fairness_share_heavy": 0.5},
        {"fairness_share_heavy": None},
    ]
    for fault in faults:
        assert sum(not met for met in wanted({**fine, **fault}).values()) == 1, fault


def test_a_look_reads_four_metrics_and_refuses_a_text_without_them() -> None:
    text = (
        "# HELP vllm:kv_cache_usage_perc x\n"
        'vllm:kv_cache_usage_perc{engine="0"} 0.25\n'
        'vllm:num_requests_running{engine="0"} 3.0\n'
        'vllm:num_requests_waiting{engine="0"} 1.0\n'
        'vllm:num_requests_waiting_by_reason{engine="0"} 7.0\n'
        'vllm:num_preemptions_total{engine="0"} 12.0\n'
    )
    assert sample_of(text, 1.5, base=10) == Sample(1.5, 0.25, 3, 1, 2)
    with pytest.raises(KeyError):
        sample_of(text.replace("preemptions", "other"), 1.5)


def test_the_command_line_has_a_quick_size_and_refuses_no_rounds() -> None:
    assert parse([]).rounds >= 5
    assert parse(["--quick"]).rounds == 1
    assert parse(["--rounds", "3"]).rounds == 3
    with pytest.raises(SystemExit):
        parse(["--rounds", "-1"])
