"""Scheduler, of running requests: checkpoints, leases kept alive, price, landing for pressure."""

from governor.core.dispatch import (
    Action,
    Draining,
    LandForPressure,
    Queued,
    Renew,
    Renewed,
    Reserve,
    SchedulerSettings,
    Scraped,
    Shed,
    Tick,
    WakeAt,
)
from governor.core.outcomes import Reason
from governor.core.policy import LandingPolicy, TenantPolicy
from governor.core.price import PriceSettings
from tests.admission_builders import SECOND, view
from tests.scheduler_driver import NEVER_STALE, SETTINGS, Driver, ids, of


def test_a_checkpoint_swaps_the_profile_for_a_conditional_one() -> None:
    driver = Driver()
    (reserve,) = of(Reserve, driver.arrive("a"))
    (renew,) = of(Renew, driver.send(Renewed("a", 100, thinking_over=False)))
    assert renew.profile != reserve.lease_request.profile
    assert renew.profile.tops[0] > reserve.lease_request.profile.tops[0]
    assert driver.scheduler.fleet(0).workers[0].sums.top == renew.profile.tops


def test_when_thinking_is_over_only_the_answer_is_still_expected() -> None:
    thinking, answering = Driver(), Driver()
    for driver in (thinking, answering):
        driver.arrive("a", thinking_tokens=400, max_completion_tokens=600)
    (on,) = of(Renew, thinking.send(Renewed("a", 80, thinking_over=False)))
    (over,) = of(Renew, answering.send(Renewed("a", 80, thinking_over=True)))
    assert sum(over.profile.mean_milliblocks) < sum(on.profile.mean_milliblocks) / 2


def test_what_runs_longer_than_forecast_is_charged_for_it() -> None:
    driver = Driver()
    area = of(Reserve, Driver().arrive("x"))[0].lease_request.area_charged
    policy = TenantPolicy(kv_area_per_minute=5 * area // 2)
    driver.arrive("a", policy=policy)
    driver.send(Renewed("a", 190, thinking_over=False))
    assert of(Queued, driver.arrive("b", policy=policy))[0].reason is Reason.TENANT_QUOTA


def test_a_checkpoint_that_comes_late_is_ignored() -> None:
    driver = Driver()
    driver.arrive("a")
    driver.settle("a")
    assert not of(Renew, driver.send(Renewed("a", 10, thinking_over=False)))


def test_a_lease_is_kept_alive_while_its_stream_is_between_checkpoints() -> None:
    driver = Driver()
    # So slow a worker that the next checkpoint is further off than the end of the lease.
    driver.send(Scraped(view(us_per_token=SECOND, scraped_us=1)))
    (wake,) = of(WakeAt, driver.arrive("a"))[-1:]
    assert wake.at_us == SETTINGS.lease_ttl_us // 2
    driver.now_us = wake.at_us
    assert ids(Renew, driver.send(Tick())) == ["a"]
    driver.settle("a")
    driver.now_us += SETTINGS.lease_ttl_us
    assert not of(Renew, driver.send(Tick()))


def test_the_grant_is_made_at_dispatch_for_the_price_of_that_moment() -> None:
    driver = Driver()
    driver.send(Draining("w0", True))
    driver.arrive("a")
    driver.now_us = 5 * SECOND
    driver.scheduler.pools["w0"].price.value = 1.0
    (reserve,) = of(Reserve, driver.send(Draining("w0", False)))
    assert reserve.judged.grant_inputs.price == 1.0
    assert reserve.judged.grant_inputs.now_us == 5 * SECOND


PATIENT = SchedulerSettings(
    admission=NEVER_STALE, price=PriceSettings(first_latency_us=SECOND // 10)
)


def pressed(policy: TenantPolicy, *, thought_tokens: int) -> tuple[Driver, list[Action]]:
    """A pool full of one thinker, and a request that has waited for more than half of its time."""
    driver = Driver(settings=PATIENT)
    driver.send(Scraped(view(max_model_len=6_000)))
    driver.arrive(
        "thinker",
        policy=policy,
        prompt_tokens=800,
        thinking_tokens=600,
        max_completion_tokens=5_000,
    )
    driver.send(Renewed("thinker", thought_tokens, thinking_over=False))
    actions: list[Action] = driver.arrive("waits", prompt_tokens=800)
    assert of(Queued, actions)
    for step in range(250):
        driver.now_us = step * SECOND // 10
        actions += driver.send(Renewed("thinker", thought_tokens + step, thinking_over=False))
        if ids(LandForPressure, actions):
            break
    return driver, actions


def test_a_thinker_is_landed_before_a_waiting_request_is_shed() -> None:
    driver, actions = pressed(TenantPolicy(), thought_tokens=400)
    assert ids(LandForPressure, actions) == ["thinker"]
    assert not of(Shed, actions)
    assert 15 * SECOND <= driver.now_us < 30 * SECOND
    # What the landing will free counts at once: the ledger hears of it with the same breath.
    landing = of(Renew, actions)[-1]
    assert landing.request_id == "thinker"
    assert sum(landing.profile.mean_milliblocks) < sum(
        of(Renew, actions)[-2].profile.mean_milliblocks
    )


def test_nobody_is_landed_where_the_policy_does_not_allow_it() -> None:
    _, actions = pressed(TenantPolicy(landing=LandingPolicy(enabled=False)), thought_tokens=400)
    assert not of(LandForPressure, actions)


def test_nobody_is_landed_twice() -> None:
    driver, _ = pressed(TenantPolicy(), thought_tokens=400)
    actions: list[Action] = []
    for _ in range(20):
        driver.now_us += SECOND // 10
        actions += driver.send(Tick())
    assert not of(LandForPressure, actions)


def test_thinking_below_the_safe_cut_floor_is_not_landed() -> None:
    fresh = Driver(settings=PATIENT)
    fresh.arrive("fresh", thinking_tokens=600, max_completion_tokens=None)
    request = fresh.scheduler._requests["fresh"]
    request.progress(50, thinking_over=False)
    assert not request.landable
    request.progress(100, thinking_over=False)
    assert request.landable
    request.progress(120, thinking_over=True)
    assert not request.landable
