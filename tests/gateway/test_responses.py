"""Refusals as clients see them: status, headers, OpenAI error body."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.errors import RequestInvalid
from governor.core.outcomes import Reason
from governor.gateway.responses import Refusal, invalid, refused, upstream_failed

SECOND = 1_000_000


def read(refusal: Refusal) -> tuple[int, dict[str, str], dict[str, Any]]:
    status, headers, body = refusal
    named = {name.decode(): value.decode() for name, value in headers}
    assert len(named) == len(headers)
    assert all(name == name.lower() for name in named)
    assert named["content-type"] == "application/json"
    assert named["x-governor-decision"] == "d-1"
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return status, named, error


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        (None, 400, "invalid_request_error"),
        ("invalid_json", 400, "invalid_request_error"),
        ("invalid_api_key", 401, "authentication_error"),
        ("model_not_allowed", 403, "permission_error"),
        ("model_not_found", 404, "not_found_error"),
        ("not_found", 404, "not_found_error"),
        ("body_too_large", 413, "invalid_request_error"),
    ],
)
def test_the_clients_mistake_has_the_status_of_its_code(
    code: str | None, status: int, kind: str
) -> None:
    made = read(invalid(RequestInvalid("no", "model", code=code), "d-1"))
    assert made[0] == status
    assert made[2] == {"message": "no", "type": kind, "param": "model", "code": code}


@pytest.mark.parametrize("reason", list(Reason))
def test_own_limits_are_429_and_the_fleets_503(reason: Reason) -> None:
    status, headers, error = read(refused(reason, 2 * SECOND, "d-1", 1_234_567, 0.0))
    own = reason.is_tenants_own
    assert status == (429 if own else 503)
    assert error["type"] == ("rate_limit_error" if own else "server_overloaded")
    assert error["code"] == reason.value
    assert headers["x-governor-reason"] == reason.value
    assert headers["x-governor-queue-ms"] == "1234"
    if reason is not Reason.NEVER_FITS:
        assert headers["retry-after"] == "2"


def test_the_draw_spreads_the_wait_upwards() -> None:
    waits = [
        int(read(refused(Reason.NO_HEADROOM, 20 * SECOND, "d-1", 0, draw))[1]["retry-after"])
        for draw in (0.0, 0.5, 0.99)
    ]
    assert waits == [20, 23, 25]


def test_a_wait_that_is_too_long_is_not_to_be_retried() -> None:
    headers = read(refused(Reason.TENANT_QUOTA, 61 * SECOND, "d-1", 0, 0.5))[1]
    assert headers["x-should-retry"] == "false"
    assert "retry-after" not in headers


@given(
    st.integers(min_value=-SECOND, max_value=60 * SECOND),
    st.floats(min_value=0.0, max_value=1.0, exclude_max=True),
)
def test_a_stated_wait_is_one_to_sixty_seconds_and_never_too_early(
    retry_after_us: int, draw: float
) -> None:
    headers = read(refused(Reason.NO_HEADROOM, retry_after_us, "d-1", 0, draw))[1]
    wait_s = int(headers["retry-after"])
    assert 1 <= wait_s <= 60
    assert wait_s * SECOND >= retry_after_us
    assert "x-should-retry" not in headers


@pytest.mark.parametrize(
    ("worker_status", "timed_out", "status", "code"),
    [
        (None, False, 502, "worker_failed"),
        (None, True, 504, "worker_timeout"),
        (408, False, 504, "worker_timeout"),
        (504, False, 504, "worker_timeout"),
        (500, False, 502, "worker_failed"),
        (429, False, 503, "worker_overloaded"),
        (503, False, 503, "worker_overloaded"),
        (529, False, 503, "worker_overloaded"),
    ],
)
def test_a_workers_failure_is_told_by_kind(
    worker_status: int | None, timed_out: bool, status: int, code: str
) -> None:
    made, headers, error = read(
        upstream_failed("it broke", worker_status, "d-1", timed_out=timed_out)
    )
    assert (made, error["code"], error["message"]) == (status, code, "it broke")
    assert headers.get("retry-after") == ("1" if status == 503 else None)


def test_a_request_that_never_fits_is_not_worth_a_retry() -> None:
    headers = read(refused(Reason.NEVER_FITS, 2 * SECOND, "d-1", 0, 0.5))[1]
    assert headers["x-should-retry"] == "false"
    assert "retry-after" not in headers
