"""Scheduler: order, limits, lost races, waiting and its bounds, faults."""

from dataclasses import replace
from typing import Any

import pytest

from governor.core.dispatch import (
    Abandon,
    Draining,
    Event,
    Gone,
    LeaseRefused,
    PolicyChanged,
    Queued,
    Renewed,
    Reserve,
    Reserved,
    Scraped,
    Settled,
    Shed,
    Tick,
    WakeAt,
    WorkerRemoved,
)
from governor.core.errors import IllegalEvent
from governor.core.lease import RefusalReason, Refused
from governor.core.outcomes import Outcome, Priority, Reason
from governor.core.policy import QueuePolicy, TenantPolicy
from tests.admission_builders import SECOND, arrived, settlement, view
from tests.scheduler_driver import SETTINGS, Driver, ids, lease_of, of


@pytest.fixture
def roomy() -> Driver:
    driver = Driver()
    driver.scheduler.receive(Scraped(view(max_model_len=4_000, capacity_blocks=100)), 0)
    return driver


def test_a_request_that_fits_is_reserved_at_once_with_all_that_a_record_needs() -> None:
    (reserve, *_rest) = of(Reserve, Driver().arrive("a"))
    assert (reserve.request_id, reserve.worker_id, reserve.reason) == ("a", "w0", Reason.FITS)
    assert reserve.queued_us == 0
    assert reserve.lease_request.area_charged == reserve.judged.decision.area
    assert reserve.lease_request.profile == reserve.judged.decision.profile
    assert reserve.grant == reserve.judged.grant_inputs.grant(
        reserve.judged.demand, reserve.judged.policy, reserve.judged.forecast
    )


def test_requests_go_to_the_emptier_worker() -> None:
    driver = Driver(100, 100)
    placed = [of(Reserve, driver.arrive(f"r{index}"))[0].worker_id for index in range(4)]
    assert sorted(placed) == ["w0", "w0", "w1", "w1"]


def test_one_that_does_not_fit_waits_and_starts_when_there_is_room(roomy: Driver) -> None:
    roomy.fill()
    actions = roomy.arrive("a", prompt_tokens=320)
    assert of(Queued, actions) == [Queued("a", 1, Reason.NO_HEADROOM)]
    assert of(WakeAt, actions)
    assert not of(Reserve, actions)
    roomy.now_us = SECOND
    (reserve,) = of(Reserve, roomy.settle("full"))
    assert (reserve.request_id, reserve.queued_us) == ("a", SECOND)


def test_room_that_appears_by_the_passing_of_time_is_used() -> None:
    driver = Driver(40)
    driver.arrive("a", prompt_tokens=320, max_completion_tokens=100)
    driver.now_us = 80_000
    driver.send(Renewed("a", 80, thinking_over=False))
    assert of(Queued, driver.arrive("b", prompt_tokens=320))
    driver.now_us += 35_000  # beyond the 20 tokens that `a` has left, and it is not late yet
    assert ids(Reserve, driver.send(Tick())) == ["b"]


def test_what_is_silent_beyond_its_forecast_still_holds_its_room() -> None:
    driver = Driver(40)
    driver.arrive("a", prompt_tokens=320)
    assert of(Queued, driver.arrive("b", prompt_tokens=320))
    for seconds in (1, 3, 29):
        driver.now_us = seconds * SECOND
        assert not of(Reserve, driver.send(Tick()))


def test_what_can_never_start_is_shed_at_once_and_leaves_nothing_behind() -> None:
    driver = Driver()
    (shed,) = of(Shed, driver.arrive("huge", prompt_tokens=10_000))
    assert (shed.reason, shed.queued_us) == (Reason.NEVER_FITS, 0)
    assert shed.judged is not None
    (shed,) = of(Shed, driver.arrive("lost", model="other"))
    assert shed.reason is Reason.NO_WORKER
    assert driver.scheduler.waiting == driver.scheduler.in_flight == 0
    with pytest.raises(IllegalEvent):
        driver.settle("huge")


def queue_up(driver: Driver, *names: str, **changes: Any) -> None:
    """Requests of 40 blocks, of which two never run side by side with `full`'s successor."""
    for name in names:
        assert of(Queued, driver.arrive(name, prompt_tokens=640, **changes))


def served(driver: Driver, count: int) -> list[str]:
    """The order of dispatch when each request ends before the next has room."""
    order: list[str] = []
    running = ids(Reserve, driver.settle("full"))
    while running and len(order) < count:
        order += running
        running = [name for done in running for name in ids(Reserve, driver.settle(done))]
    return order


def test_higher_bands_start_first(roomy: Driver) -> None:
    roomy.fill()
    queue_up(roomy, "batch", priority=Priority.BATCH)
    queue_up(roomy, "normal")
    queue_up(roomy, "critical", priority=Priority.CRITICAL)
    assert served(roomy, 3) == ["critical", "normal", "batch"]


def test_the_least_laxity_starts_first_within_a_band(roomy: Driver) -> None:
    roomy.fill()
    queue_up(roomy, "plain")
    queue_up(roomy, "late", deadline_us=25 * SECOND)
    queue_up(roomy, "soon", deadline_us=12 * SECOND)
    assert served(roomy, 3) == ["soon", "late", "plain"]


def test_tenants_take_turns_however_many_one_of_them_sends(roomy: Driver) -> None:
    roomy.fill()
    queue_up(roomy, "a1", "a2", "a3", tenant="a")
    queue_up(roomy, "b1", tenant="b")
    order = served(roomy, 4)
    assert order.index("b1") <= 2
    assert [name for name in order if name.startswith("a")] == ["a1", "a2", "a3"]


def test_a_head_that_does_not_fit_does_not_block_those_that_do(roomy: Driver) -> None:
    roomy.fill()
    queue_up(roomy, "large", priority=Priority.HIGH)
    assert ids(Reserve, roomy.arrive("small", prompt_tokens=1, max_completion_tokens=8)) == [
        "small"
    ]


def test_but_it_is_overtaken_only_so_often() -> None:
    driver = Driver(settings=replace(SETTINGS, max_bypass=3))
    driver.send(Scraped(view(max_model_len=4_000)))
    driver.fill()
    queue_up(driver, "large", priority=Priority.HIGH)
    outcomes = []
    for index in range(5):
        name = f"small{index}"
        actions = driver.arrive(name, prompt_tokens=1, max_completion_tokens=8)
        outcomes.append(bool(of(Reserve, actions)))
        if outcomes[-1]:
            driver.settle(name)
        else:
            assert of(Queued, actions)[0].reason is Reason.BEHIND_OTHERS
    assert outcomes == [True, True, True, False, False]
    assert ids(Reserve, driver.settle("full"))[0] == "large"


def test_those_that_need_as_much_as_one_that_has_no_room_are_not_asked() -> None:
    """So that a long queue costs one decision and the small request behind it gets its turn."""
    driver = Driver(settings=replace(SETTINGS, attempts_per_pass=2))
    driver.send(Scraped(view(max_model_len=4_000)))
    driver.fill()
    queue_up(driver, "l1", "l2", "l3", "l4", priority=Priority.HIGH)
    small = {"prompt_tokens": 1, "max_completion_tokens": 8}
    assert ids(Reserve, driver.arrive("small", **small)) == ["small"]


def test_retry_after_counts_what_waits(roomy: Driver) -> None:
    """The pool works off 1.6 token² each microsecond; each that waits is of about 80,000 token²."""
    roomy.fill()
    queue_up(roomy, *(f"q{index}" for index in range(100)))
    full = TenantPolicy(tenant="b", queue=QueuePolicy(max_queued=0))
    (shed,) = of(Shed, roomy.arrive("b", tenant="b", policy=full, prompt_tokens=640))
    assert 4 * SECOND < shed.retry_after_us < 10 * SECOND


def test_a_tenant_at_its_concurrency_waits_and_does_not_hold_up_others() -> None:
    driver = Driver()
    policy = TenantPolicy(tenant="a", max_concurrent=1)
    driver.arrive("a1", tenant="a", policy=policy)
    (queued,) = of(Queued, driver.arrive("a2", tenant="a", policy=policy))
    assert queued.reason is Reason.TENANT_CONCURRENCY
    assert ids(Reserve, driver.arrive("b1", tenant="b")) == ["b1"]
    assert ids(Reserve, driver.settle("a1")) == ["a2"]


def test_quota_is_charged_at_dispatch_and_trued_up_at_settle() -> None:
    driver = Driver()
    area = of(Reserve, Driver().arrive("x"))[0].lease_request.area_charged
    policy = TenantPolicy(kv_area_per_minute=3 * area // 2)
    driver.arrive("a", policy=policy)
    (queued,) = of(Queued, driver.arrive("b", policy=policy))
    assert queued.reason is Reason.TENANT_QUOTA
    # `a` used a tenth of what was forecast, so the rest is given back.
    assert ids(Reserve, driver.settle("a", area // 10)) == ["b"]


def test_a_wait_ends_at_its_bound_with_the_reason_that_kept_it(roomy: Driver) -> None:
    limited = TenantPolicy(tenant="own", max_concurrent=1)
    roomy.fill()
    roomy.arrive("first", tenant="own", policy=limited, prompt_tokens=1, max_completion_tokens=8)
    roomy.arrive("second", tenant="own", policy=limited)
    queue_up(roomy, "full up")
    queue_up(roomy, "hurried", deadline_us=20 * SECOND)
    roomy.now_us = 20 * SECOND
    (shed,) = of(Shed, roomy.send(Tick()))
    assert (shed.request_id, shed.reason) == ("hurried", Reason.DEADLINE_UNREACHABLE)


def test_the_tenants_own_limit_is_told_when_it_is_what_the_wait_ended_on() -> None:
    driver = Driver()
    limited = TenantPolicy(max_concurrent=1, queue=QueuePolicy(ttl_s=2.0))
    driver.arrive("a", policy=limited)
    driver.arrive("b", policy=limited)
    driver.now_us = 2 * SECOND - 1
    assert not of(Shed, driver.send(Tick()))
    driver.now_us = 2 * SECOND
    (shed,) = of(Shed, driver.send(Tick()))
    assert (shed.request_id, shed.reason) == ("b", Reason.TENANT_CONCURRENCY)
    assert (shed.queued_us, shed.retry_after_us >= SECOND) == (2 * SECOND, True)


def test_a_queue_ttl_ends_a_wait_for_headroom() -> None:
    driver = Driver()
    driver.send(Draining("w0", True))
    (queued,) = of(Queued, driver.arrive("a"))
    assert queued.reason is Reason.DRAINING
    driver.now_us = 30 * SECOND
    (shed,) = of(Shed, driver.send(Tick()))
    assert shed.reason is Reason.QUEUE_TTL
    assert not shed.reason.is_tenants_own


def test_the_wake_comes_before_the_next_bound() -> None:
    driver = Driver()
    driver.send(Draining("w0", True))
    policy = TenantPolicy(queue=QueuePolicy(ttl_s=0.05))
    (wake,) = of(WakeAt, driver.arrive("a", policy=policy))
    assert wake.at_us == 50_000
    driver.now_us = wake.at_us
    assert ids(Shed, driver.send(Tick())) == ["a"]


def test_a_tenants_queue_has_its_bound() -> None:
    driver = Driver()
    driver.send(Draining("w0", True))
    policy = TenantPolicy(queue=QueuePolicy(max_queued=2))
    for index in range(2):
        assert of(Queued, driver.arrive(f"r{index}", policy=policy))
    (shed,) = of(Shed, driver.arrive("r2", policy=policy))
    assert shed.reason is Reason.QUEUE_FULL
    assert driver.scheduler.waiting == 2


def test_a_client_that_leaves_the_queue_is_forgotten() -> None:
    driver = Driver()
    driver.send(Draining("w0", True))
    driver.arrive("a")
    assert not of(Shed, driver.send(Gone("a")))
    assert driver.scheduler.waiting == 0
    driver.send(Gone("a"))
    driver.send(Gone("never known"))


def test_a_client_that_leaves_while_a_lease_is_reserved_leaves_it_unused() -> None:
    driver = Driver()
    (reserve,) = of(Reserve, driver.send(arrived("a"), grant=False))
    driver.send(Gone("a"))
    lease = lease_of(reserve.lease_request, 0)
    assert of(Abandon, driver.send(Reserved("a", lease))) == [Abandon("a", lease)]
    driver.settle("a", 0)
    assert driver.scheduler.in_flight == 0


def test_a_client_that_left_before_a_refusal_is_forgotten() -> None:
    driver = Driver()
    driver.send(arrived("a"), grant=False)
    driver.send(Gone("a"))
    refused = Refused(RefusalReason.NO_HEADROOM, 1)
    assert not of(Reserve, driver.send(LeaseRefused("a", refused)))
    assert driver.scheduler.waiting == driver.scheduler.in_flight == 0


def test_a_lost_race_is_decided_once_more_and_then_waits() -> None:
    driver = Driver(100, 100)
    refused = Refused(RefusalReason.NO_HEADROOM, 1)
    (first,) = of(Reserve, driver.send(arrived("a"), grant=False))
    (second,) = of(Reserve, driver.send(LeaseRefused("a", refused), grant=False))
    assert {first.worker_id, second.worker_id} == {"w0", "w1"}
    actions = driver.send(LeaseRefused("a", refused), grant=False)
    assert of(Queued, actions) == [Queued("a", 1, Reason.LOST_RACE)]
    assert not of(Reserve, actions)
    # It is tried again when it is next woken, not in a circle.
    (wake,) = of(WakeAt, actions)
    driver.now_us = wake.at_us
    assert ids(Reserve, driver.send(Tick())) == ["a"]


def test_nobody_passes_one_who_has_just_lost_a_race() -> None:
    driver = Driver(100)
    refused = Refused(RefusalReason.NO_HEADROOM, 1)
    driver.send(arrived("a", prompt_tokens=320), grant=False)
    actions = driver.send(LeaseRefused("a", refused), grant=False)
    if of(Reserve, actions):
        actions = driver.send(LeaseRefused("a", refused), grant=False)
    assert not of(Reserve, actions)
    # The next one in order would fit, too.
    assert not of(Reserve, driver.send(arrived("b", prompt_tokens=480)))
    driver.now_us += SETTINGS.poll_us
    assert ids(Reserve, driver.send(Tick())) == ["a", "b"]


def test_a_refused_lease_gives_back_what_was_charged() -> None:
    driver = Driver()
    driver.send(arrived("a"), grant=False)
    driver.send(LeaseRefused("a", Refused(RefusalReason.OVERCOMMITTED, 1)), grant=False)
    driver.send(Gone("a"))
    assert driver.scheduler.in_flight == 0
    load = driver.scheduler.fleet(0).workers[0]
    assert (load.in_flight, load.sums.count) == (0, 0)


def test_unenforced_requests_start_at_once_and_say_what_admission_would_have_said(
    roomy: Driver,
) -> None:
    roomy.fill()
    (reserve,) = of(Reserve, roomy.arrive("shadow", enforce=False, prompt_tokens=640))
    assert reserve.reason is Reason.ADMISSION_OFF
    assert reserve.judged.decision.outcome is Outcome.QUEUE
    assert reserve.judged.decision.reason is Reason.NO_HEADROOM
    assert reserve.lease_request.force


def test_unenforced_requests_go_to_the_best_worker_even_if_it_never_fits() -> None:
    driver = Driver(2, 3)
    (reserve,) = of(Reserve, driver.arrive("huge", enforce=False, prompt_tokens=5_000))
    assert reserve.judged.decision.reason is Reason.NEVER_FITS
    (shed,) = of(Shed, driver.arrive("lost", enforce=False, model="other"))
    assert shed.reason is Reason.NO_WORKER


def test_an_unenforced_request_that_no_ledger_takes_is_shed() -> None:
    driver = Driver(100, 100)
    driver.send(arrived("a", enforce=False), grant=False)
    refused = LeaseRefused("a", Refused(RefusalReason.LEDGER_FULL, 1))
    assert ids(Reserve, driver.send(refused, grant=False)) == ["a"]
    (shed,) = of(Shed, driver.send(refused, grant=False))
    assert shed.reason is Reason.LOST_RACE
    assert driver.scheduler.in_flight == 0


def test_a_changed_policy_judges_what_waits_already() -> None:
    driver = Driver()
    driver.arrive("a", policy=TenantPolicy(max_concurrent=1))
    driver.arrive("b", policy=TenantPolicy(max_concurrent=1))
    actions = driver.send(PolicyChanged({"default": TenantPolicy(max_concurrent=2)}))
    assert ids(Reserve, actions) == ["b"]


def test_a_worker_that_joins_takes_what_waits() -> None:
    driver = Driver()
    driver.send(Draining("w0", True))
    driver.arrive("a")
    (reserve,) = of(Reserve, driver.send(Scraped(view("w1"))))
    assert reserve.worker_id == "w1"


def test_a_removed_worker_is_not_picked_and_its_requests_end_by_themselves() -> None:
    driver = Driver(100, 100)
    (reserve,) = of(Reserve, driver.arrive("a"))
    driver.send(WorkerRemoved(reserve.worker_id))
    (other,) = of(Reserve, driver.arrive("b"))
    assert other.worker_id != reserve.worker_id
    driver.send(Renewed("a", 10, thinking_over=False))
    driver.settle("a")
    assert driver.scheduler.in_flight == 1


def test_a_retry_elsewhere_avoids_the_worker_that_failed_unless_it_is_the_only_one() -> None:
    driver = Driver(100, 100)
    again = replace(arrived("a"), excluded=frozenset({"w0"}), attempt=1)
    (reserve,) = of(Reserve, driver.send(again))
    assert (reserve.worker_id, reserve.lease_request.attempt) == ("w1", 1)
    (only,) = of(Reserve, Driver().send(again))
    assert only.worker_id == "w0"


@pytest.mark.parametrize(
    "event",
    [
        Settled("a", settlement()),
        Reserved("a", lease_of(of(Reserve, Driver().arrive("x"))[0].lease_request, 0)),
        LeaseRefused("a", Refused(RefusalReason.NO_HEADROOM, 0)),
        Renewed("a", 1, thinking_over=False),
    ],
    ids=lambda event: type(event).__name__,
)
def test_an_event_that_the_table_does_not_allow_changes_nothing(event: Event) -> None:
    driver = Driver()
    driver.send(Draining("w0", True))
    driver.arrive("a")
    with pytest.raises(IllegalEvent):
        driver.send(event)
    assert ids(Reserve, driver.send(Draining("w0", False))) == ["a"]


def test_an_id_cannot_arrive_twice() -> None:
    driver = Driver()
    driver.arrive("a")
    with pytest.raises(ValueError):
        driver.arrive("a")
