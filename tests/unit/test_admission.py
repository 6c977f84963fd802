"""Admission: each reason, what waiting mends and what it does not, and replay from the decision."""

from dataclasses import replace
from typing import Any

import pytest

from governor.core.admission import AdmissionSettings, Decision, TenantUsage, decide
from governor.core.budget import grant
from governor.core.demand import Demand
from governor.core.fleet import FleetView, WorkerLoad
from governor.core.outcomes import Outcome, Priority, Reason
from governor.core.placement import PlacementSettings
from governor.core.policy import QueuePolicy, TenantPolicy
from tests.admission_builders import SECOND, demand, fleet, forecast, loaded, view

SETTINGS = AdmissionSettings()


def ask(
    workers: FleetView,
    asked: Demand | None = None,
    *,
    policy: TenantPolicy | None = None,
    usage: TenantUsage | None = None,
    now_us: int = 0,
    thinking_tokens: float = 100,
    settings: AdmissionSettings = SETTINGS,
    **more: Any,
) -> Decision:
    asked = asked or demand()
    policy = policy or TenantPolicy()
    expected = forecast(thinking_tokens)
    granted = grant(
        asked,
        policy,
        expected,
        wrap_up_tokens=4,
        max_model_len=640,
        us_per_token=1_000,
        price=0.0,
        now_us=now_us,
        unlanded_draw=0.5,
    )
    usage = usage or TenantUsage()
    return decide(asked, granted, expected, policy, workers, usage, now_us, 0.5, settings, **more)


def test_an_idle_worker_takes_the_request_and_the_decision_holds_its_profile() -> None:
    decision = ask(fleet())
    assert (decision.outcome, decision.reason, decision.worker_id) == (
        Outcome.ADMIT,
        Reason.FITS,
        "w0",
    )
    assert decision.profile is not None
    assert decision.profile.mean_milliblocks[0] >= 4_000
    assert decision.area > 0


def test_a_full_pool_lets_the_request_wait() -> None:
    decision = ask(fleet(loaded(95)))
    assert (decision.outcome, decision.reason) == (Outcome.QUEUE, Reason.NO_HEADROOM)
    assert decision.worker_id is None
    assert decision.profile is None


def test_external_load_takes_headroom_away() -> None:
    assert ask(fleet(loaded(30))).outcome is Outcome.ADMIT
    assert ask(fleet(loaded(30, external_blocks=60))).reason is Reason.NO_HEADROOM


@pytest.mark.parametrize(
    ("priority", "most"),
    [
        (Priority.CRITICAL, 100),
        (Priority.HIGH, 100),
        (Priority.NORMAL, 98),
        (Priority.LOW, 90),
        (Priority.BATCH, 80),
    ],
)
def test_each_band_fills_the_pool_up_to_its_own_limit(priority: Priority, most: int) -> None:
    exact = replace(demand(), priority=priority, max_completion_tokens=1, thinks=False)
    need = 5  # blocks of 64 prompt tokens and one more
    sure = {"z": 0.0, "sigma_c": 0.0}
    assert ask(fleet(loaded(most - need, **sure)), exact).outcome is Outcome.ADMIT
    assert ask(fleet(loaded(most - need + 1, **sure)), exact).reason is Reason.NO_HEADROOM


def test_a_prompt_that_no_pool_can_hold_is_shed_at_once() -> None:
    small = WorkerLoad(view(capacity_blocks=3))
    decision = ask(fleet(small))
    assert (decision.outcome, decision.reason) == (Outcome.SHED, Reason.NEVER_FITS)


def test_a_prompt_beyond_the_model_length_is_shed_at_once() -> None:
    long = replace(demand(), prompt_tokens=640)
    decision = ask(fleet(WorkerLoad(view(capacity_blocks=1_000))), long)
    assert (decision.outcome, decision.reason) == (Outcome.SHED, Reason.NEVER_FITS)


def test_an_idle_pool_takes_a_request_whose_forecast_outgrows_it() -> None:
    tight = WorkerLoad(view(capacity_blocks=8))
    decision = ask(fleet(tight), replace(demand(), priority=Priority.BATCH), thinking_tokens=400)
    assert decision.outcome is Outcome.ADMIT
    assert decision.chosen is not None
    assert decision.limit_milliblocks == decision.chosen.peak_milliblocks


def test_no_worker_for_the_model_is_shed() -> None:
    decision = ask(fleet(), replace(demand(), model="unknown"))
    assert (decision.outcome, decision.reason) == (Outcome.SHED, Reason.NO_WORKER)


def test_a_draining_worker_takes_nothing() -> None:
    decision = ask(fleet(WorkerLoad(view(draining=True))))
    assert (decision.outcome, decision.reason) == (Outcome.QUEUE, Reason.DRAINING)


def test_a_worker_with_its_own_queue_is_not_fed() -> None:
    assert ask(fleet(loaded(1, waiting=2))).outcome is Outcome.ADMIT
    assert ask(fleet(loaded(1, waiting=3))).reason is Reason.NO_HEADROOM
    assert ask(fleet(loaded(1, waiting=None))).outcome is Outcome.ADMIT


def test_an_overcommitted_worker_takes_nothing() -> None:
    assert ask(fleet(loaded(1, overcommitted=True))).reason is Reason.NO_HEADROOM


def test_a_concurrency_limit_in_force_binds() -> None:
    assert ask(fleet(loaded(1, in_flight=3, concurrency_limit=4))).outcome is Outcome.ADMIT
    assert ask(fleet(loaded(1, in_flight=4, concurrency_limit=4))).reason is Reason.NO_HEADROOM


def test_a_stale_worker_counts_as_saturated_while_another_is_fresh() -> None:
    now_us = 10 * SECOND
    stale, fresh = loaded(0, "a"), loaded(0, "b", view=view("b", scraped_us=now_us), waiting=9)
    decision = ask(fleet(stale, fresh), now_us=now_us)
    assert [c.reason for c in decision.candidates] == [Reason.FLEET_STALE, Reason.NO_HEADROOM]
    assert decision.outcome is Outcome.QUEUE


def test_with_everything_stale_each_worker_takes_a_few_by_own_counts() -> None:
    now_us = 10 * SECOND
    assert ask(fleet(loaded(1, in_flight=3)), now_us=now_us).outcome is Outcome.ADMIT
    decision = ask(fleet(loaded(1, in_flight=4)), now_us=now_us)
    assert (decision.outcome, decision.reason) == (Outcome.QUEUE, Reason.FLEET_STALE)


def test_with_everything_stale_the_headroom_of_own_leases_still_binds() -> None:
    # The window starts at 0, so at second 10 the load must be one that is still in it.
    stale = replace(loaded(95), view=view(scraped_us=None))
    assert ask(fleet(stale)).reason is Reason.NO_HEADROOM


def test_unknown_capacity_makes_a_worker_a_concurrency_limiter() -> None:
    unknown = WorkerLoad(view(capacity_blocks=None), in_flight=3)
    assert ask(fleet(unknown)).outcome is Outcome.ADMIT
    assert ask(fleet(replace(unknown, in_flight=4))).reason is Reason.NO_HEADROOM


def test_tenant_concurrency_waits_and_zero_is_refused() -> None:
    limited = TenantPolicy(max_concurrent=2)
    assert ask(fleet(), policy=limited, usage=TenantUsage(1)).outcome is Outcome.ADMIT
    decision = ask(fleet(), policy=limited, usage=TenantUsage(2))
    assert (decision.outcome, decision.reason) == (Outcome.QUEUE, Reason.TENANT_CONCURRENCY)
    decision = ask(fleet(), policy=TenantPolicy(max_concurrent=0))
    assert (decision.outcome, decision.reason) == (Outcome.SHED, Reason.TENANT_CONCURRENCY)


def test_quota_waits_where_it_refills_in_time_and_is_shed_where_not() -> None:
    area = ask(fleet()).area
    limited = TenantPolicy(kv_area_per_minute=2 * area)
    assert ask(fleet(), policy=limited, usage=TenantUsage(0, area)).outcome is Outcome.ADMIT
    # A minute refills two areas, so half an area takes a quarter of a minute.
    decision = ask(fleet(), policy=limited, usage=TenantUsage(0, area // 2))
    assert (decision.outcome, decision.reason) == (Outcome.QUEUE, Reason.TENANT_QUOTA)
    assert decision.retry_after_us == pytest.approx(15 * SECOND, rel=0.01)
    decision = ask(fleet(), policy=limited, usage=TenantUsage(0, -area))
    assert (decision.outcome, decision.reason) == (Outcome.SHED, Reason.TENANT_QUOTA)
    assert decision.reason.is_tenants_own


def test_a_request_larger_than_the_whole_quota_runs_when_the_bucket_is_full() -> None:
    area = ask(fleet()).area
    tiny = TenantPolicy(kv_area_per_minute=area // 10)
    assert ask(fleet(), policy=tiny, usage=TenantUsage(0, area // 10)).outcome is Outcome.ADMIT
    assert ask(fleet(), policy=tiny, usage=TenantUsage(0, 0)).outcome is not Outcome.ADMIT


def test_predicted_long_work_is_kept_to_its_share() -> None:
    policy = TenantPolicy(long_task_share=0.3)
    busy = loaded(40)
    walled = replace(busy, long_sums=loaded(28).sums)
    long = replace(demand(), max_completion_tokens=500)
    assert ask(fleet(busy), long, policy=policy, thinking_tokens=300).outcome is Outcome.ADMIT
    decision = ask(fleet(walled), long, policy=policy, thinking_tokens=300)
    assert (decision.outcome, decision.reason) == (Outcome.QUEUE, Reason.LONG_TASK_SHARE)
    assert ask(fleet(walled), policy=policy, thinking_tokens=50).outcome is Outcome.ADMIT


def test_a_deadline_that_has_passed_or_cannot_be_met_is_shed() -> None:
    for deadline_us in (0, 5_000):
        decision = ask(fleet(), replace(demand(), deadline_us=deadline_us))
        assert (decision.outcome, decision.reason) == (Outcome.SHED, Reason.DEADLINE_UNREACHABLE)
    assert ask(fleet(), replace(demand(), deadline_us=SECOND)).outcome is Outcome.ADMIT


def test_a_deadline_before_the_predicted_drain_is_shed_early() -> None:
    """The pool is expected to be full for 640 ms, which a request without a deadline waits for."""
    full = loaded(95)
    until = replace(
        full.sums, mean=(*full.sums.mean[:60], 0, 0, 0, 0), top=(*full.sums.top[:60], 0, 0, 0, 0)
    )
    draining = replace(full, sums=until)
    assert ask(fleet(draining)).outcome is Outcome.QUEUE
    decision = ask(fleet(draining), replace(demand(), deadline_us=SECOND // 2))
    assert (decision.outcome, decision.reason) == (Outcome.SHED, Reason.DEADLINE_UNREACHABLE)
    assert ask(fleet(draining), replace(demand(), deadline_us=SECOND)).outcome is Outcome.QUEUE


def test_retry_after_is_the_predicted_drain_within_its_bounds() -> None:
    settings = replace(SETTINGS, retry_least_us=0)
    full = loaded(95)
    until = replace(full.sums, mean=(*full.sums.mean[:30], *(0,) * 34))
    decision = ask(fleet(replace(full, sums=until)), settings=settings)
    assert decision.retry_after_us == 30 * 10_000
    assert ask(fleet(full)).retry_after_us == SECOND


def test_a_retry_does_not_go_where_it_failed() -> None:
    workers = fleet(WorkerLoad(view("a")), loaded(50, "b"))
    assert ask(workers).worker_id == "a"
    assert ask(workers, excluded=frozenset({"a"})).worker_id == "b"
    decision = ask(workers, excluded=frozenset({"a", "b"}))
    assert (decision.outcome, decision.reason) == (Outcome.QUEUE, Reason.LOST_RACE)


def test_several_completions_of_one_prompt_need_several_times_the_room() -> None:
    one, four = ask(fleet()), ask(fleet(), replace(demand(), n=4, landable=False))
    assert one.profile is not None
    assert four.profile is not None
    assert four.profile.mean_milliblocks[0] == 4 * one.profile.mean_milliblocks[0]
    assert four.area > 3 * one.area


@pytest.mark.parametrize("blocks", [0, 40, 80, 95])
def test_a_decision_replays_from_what_it_holds(blocks: int) -> None:
    workers = fleet(loaded(blocks, "a"), loaded(30, "b", waiting=9), loaded(blocks + 2, "c"))
    decision = ask(workers)
    assert ask(decision.fleet()) == decision


def test_queue_ttl_bounds_how_long_a_quota_is_waited_for() -> None:
    area = ask(fleet()).area
    impatient = TenantPolicy(kv_area_per_minute=2 * area, queue=QueuePolicy(ttl_s=10))
    decision = ask(fleet(), policy=impatient, usage=TenantUsage(0, area // 2))
    assert decision.outcome is Outcome.SHED


def test_an_unlisted_band_may_fill_the_pool() -> None:
    assert PlacementSettings(band_limit_permille=()).permille(Priority.LOW) == 1000
