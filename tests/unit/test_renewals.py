"""Renewals: profiles follow the worker's pace, so that what is held stays counted."""

from dataclasses import replace

from governor.core.dispatch import Renew, Renewed, Reserve, Scraped, Tick, WakeAt
from tests.admission_builders import view
from tests.scheduler_driver import Driver, ids, of

# Of the drivers' worker: microseconds per token.
PACE_US = view("w0").us_per_token
# Twice the 16 tokens to the first checkpoint.
PATIENCE_US = 32 * PACE_US


def test_a_request_slower_than_its_profile_stays_in_the_sums() -> None:
    driver = Driver()
    (reserve,) = of(Reserve, driver.arrive("a", thinking_tokens=100, max_completion_tokens=120))
    most = max(reserve.lease_request.profile.tops)
    for _ in range(40):
        driver.now_us += PATIENCE_US // 4
        driver.send(Tick())
        sums = driver.scheduler.fleet(driver.now_us).workers[0].sums
        assert max(sums.top) == most


def test_it_is_renewed_when_the_checkpoint_is_late_and_not_before() -> None:
    driver = Driver()
    (wake,) = of(WakeAt, driver.arrive("a"))[-1:]
    began_us = driver.now_us
    assert wake.at_us == began_us + PATIENCE_US
    driver.now_us = began_us + PATIENCE_US - 1
    assert not of(Renew, driver.send(Tick()))
    driver.now_us += 1
    assert ids(Renew, driver.send(Tick())) == ["a"]
    driver.now_us += PATIENCE_US - 1
    assert not of(Renew, driver.send(Tick()))


def test_patience_grows_with_the_distance_of_checkpoints() -> None:
    driver = Driver()
    driver.arrive("a")
    driver.now_us += 1
    driver.send(Renewed("a", 200, thinking_over=False))
    driver.now_us += 2 * 50 * PACE_US - 1
    assert not of(Renew, driver.send(Tick()))
    driver.now_us += 1
    assert ids(Renew, driver.send(Tick())) == ["a"]


def test_a_pace_that_moved_renews_all_that_run_there() -> None:
    driver = Driver()
    for name in ("a", "b"):
        driver.arrive(name, thinking_tokens=100, max_completion_tokens=120)

    def scraped(factor: float) -> list[str]:
        driver.now_us += 1
        seen = view("w0", scraped_us=driver.now_us)
        paced = replace(seen, us_per_token=round(factor * PACE_US))
        return ids(Renew, driver.send(Scraped(paced)))

    assert scraped(1.15) == []
    assert scraped(3.0) == ["a", "b"]
    assert scraped(2.9) == []
    assert scraped(1.0) == ["a", "b"]
