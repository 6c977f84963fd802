"""Reading JSON bodies and writing JSON and SSE for the worker's routes."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from governor_probes.embedded.api_error import ApiError, bad_request
from governor_probes.embedded.body_fields import Body

DONE = b"data: [DONE]\n\n"
_encoder = msgspec.json.Encoder()


def json_response(body: Any, status: int = 200) -> Response:
    """A JSON reply."""
    return Response(_encoder.encode(body), status, media_type="application/json")


def error_response(error: ApiError) -> Response:
    """An error reply in OpenAI's form."""
    return json_response(error.body(), error.status)


def event(body: Any) -> bytes:
    """One SSE data event."""
    return b"data: " + _encoder.encode(body) + b"\n\n"


async def read_body(request: Request) -> Body:
    """The JSON body.

    Raises:
        ApiError: 400 for malformed JSON or anything but an object.
    """
    try:
        return Body(msgspec.json.decode(await request.body()))
    except msgspec.DecodeError as error:
        raise bad_request(f"malformed JSON: {error}") from error


def attempt_of(request: Request) -> int:
    """The attempt that the gateway names in `x-governor-attempt`; 0 where absent."""
    value = request.headers.get("x-governor-attempt", "0")
    if not value.isdecimal():
        raise bad_request("x-governor-attempt must be an integer of at least 0")
    return int(value)
