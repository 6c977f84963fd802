"""Refusals and failures as HTTP responses. The only place that knows HTTP codes of refusals."""

import json
from typing import Any

from governor.core.errors import RequestInvalid
from governor.core.outcomes import Reason
from governor.core.units import US_PER_S

# Status, headers, body: the arguments of `ClientExchange.respond`.
Refusal = tuple[int, tuple[tuple[bytes, bytes], ...], bytes]

STATUS_BY_CODE = {
    "invalid_api_key": 401,
    "model_not_allowed": 403,
    "model_not_found": 404,
    "not_found": 404,
    "body_too_large": 413,
}
_TYPE_BY_STATUS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
# Common clients sleep through a Retry-After of up to 60 s and ignore longer ones.
LONGEST_RETRY_S = 60.0
# The stated wait is spread over [wait, 1.25 wait], so that refused clients do not return together.
RETRY_SPREAD = 0.25
# A worker's own "busy": 429 routers, 503 vLLM, 529 Dynamo.
_WORKER_BUSY = frozenset({429, 503, 529})
_WORKER_TIMEOUT = frozenset({408, 504})
_WORKER_RETRY_S = 1
# What client SDKs take as "do not try again": a wait too long, or a request that never fits.
_NO_RETRY = (b"x-should-retry", b"false")


def invalid(error: RequestInvalid, decision_id: str) -> Refusal:
    """The client's own mistake: 400, or the status of the error's code."""
    status = STATUS_BY_CODE.get(error.code or "", 400)
    kind = _TYPE_BY_STATUS.get(status, "invalid_request_error")
    body = _error_body(error.message, kind, error.code, error.param)
    return status, _headers(decision_id), body


def refused(
    reason: Reason, retry_after_us: int, decision_id: str, queued_us: int, draw: float
) -> Refusal:
    """Admission said no: 429 for the tenant's own limits, 503 for the fleet's.

    `draw` in [0, 1) spreads Retry-After. A wait beyond 60 s is not worth a retry and says so.
    """
    own = reason.is_tenants_own
    kind = "rate_limit_error" if own else "server_overloaded"
    whose = "a limit of this tenant" if own else "the fleet's capacity"
    message = f"not admitted, by {whose}: {reason.value}"
    told = (
        (b"x-governor-reason", reason.value.encode()),
        (b"x-governor-queue-ms", b"%d" % (max(0, queued_us) // 1000)),
        _retry_header(retry_after_us / US_PER_S, draw)
        if reason is not Reason.NEVER_FITS
        else _NO_RETRY,
    )
    body = _error_body(message, kind, reason.value, None)
    return (429 if own else 503), _headers(decision_id) + told, body


def upstream_failed(
    detail: str, status: int | None, decision_id: str, *, timed_out: bool = False
) -> Refusal:
    """A worker did not do its part and nothing reached the client: 502, 504 for a timeout, 503
    where the worker is busy. `status` is the worker's own, None where it sent none."""
    if status in _WORKER_BUSY:
        retry = (b"retry-after", b"%d" % _WORKER_RETRY_S)
        body = _error_body(detail, "server_overloaded", "worker_overloaded", None)
        return 503, (*_headers(decision_id), retry), body
    if timed_out or status in _WORKER_TIMEOUT:
        return 504, _headers(decision_id), _error_body(detail, "api_error", "worker_timeout", None)
    return 502, _headers(decision_id), _error_body(detail, "api_error", "worker_failed", None)


def internal(decision_id: str) -> Refusal:
    """Governor itself failed before the request was admitted."""
    body = _error_body("internal error in the gateway", "api_error", "internal_error", None)
    return 500, _headers(decision_id), body


def _retry_header(wait_s: float, draw: float) -> tuple[bytes, bytes]:
    if wait_s > LONGEST_RETRY_S:
        return _NO_RETRY
    spread_s = max(1.0, wait_s) * (1.0 + RETRY_SPREAD * draw)
    whole_s = -int(-spread_s // 1)
    return b"retry-after", b"%d" % min(int(LONGEST_RETRY_S), whole_s)


def _headers(decision_id: str) -> tuple[tuple[bytes, bytes], ...]:
    return (
        (b"content-type", b"application/json"),
        (b"x-governor-decision", decision_id.encode("latin-1", "replace")),
    )


def _error_body(message: str, kind: str, code: str | None, param: str | None) -> bytes:
    error: dict[str, Any] = {"message": message, "type": kind, "param": param, "code": code}
    return json.dumps({"error": error}, separators=(",", ":")).encode()
