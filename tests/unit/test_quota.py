"""Quota: a token bucket in KV area, exact in integers, with debts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.quota import AreaBucket
from tests.admission_builders import SECOND


def test_a_minute_refills_what_the_policy_grants_and_no_more_is_saved() -> None:
    bucket = AreaBucket(600, 0)
    bucket.spend(600, 0)
    assert bucket.left(0) == 0
    assert bucket.left(SECOND) == 10
    assert bucket.left(3_600 * SECOND) == 600


def test_a_true_up_is_a_debt_that_the_refill_pays_first() -> None:
    bucket = AreaBucket(600, 0)
    bucket.spend(900, 0)
    assert bucket.left(0) == -300
    assert bucket.left(30 * SECOND) == 0


def test_giving_back_never_saves_more_than_a_minute() -> None:
    bucket = AreaBucket(600, 0)
    bucket.spend(-500, 0)
    assert bucket.left(0) == 600


def test_a_changed_quota_keeps_what_was_spent() -> None:
    bucket = AreaBucket(600, 0)
    bucket.spend(100, 0)
    bucket.resize(1_000, 0)
    assert bucket.left(0) == 900


@given(st.lists(st.integers(1, 999_999), min_size=1, max_size=50))
def test_looking_often_loses_nothing(steps_us: list[int]) -> None:
    often, once = AreaBucket(7, 0), AreaBucket(7, 0)
    often.spend(1_000, 0)
    once.spend(1_000, 0)
    now_us = 0
    for step_us in steps_us:
        now_us += step_us
        often.left(now_us)
    assert often.left(now_us) == once.left(now_us)


def test_a_negative_quota_is_refused() -> None:
    with pytest.raises(ValueError):
        AreaBucket(-1, 0)
