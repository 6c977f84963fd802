"""A client's view of a running gateway, for the command line: chat streams, signals, decisions.

Knows nothing of terminals. Every refusal and every fault on the way is a `GatewayRefused` in words.
"""

import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from governor.core.errors import UpstreamProtocolError
from governor.core.sse import SseDecoder

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
# A queued request sends nothing until it is admitted, so reading has no limit of its own.
_TIMEOUT = httpx.Timeout(10.0, read=None)


class GatewayRefused(Exception):
    """The gateway could not be reached or did not do what was asked; `str()` says why.

    `status` is None where no answer came. `retry_after_s` is what the gateway advised.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        retry_after_s: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after_s = retry_after_s


def default_url(environ: Mapping[str, str] | None = None) -> str:
    """Where a gateway started on this machine listens: GOVERNOR_URL, else GOVERNOR_HOST and
    GOVERNOR_PORT, else http://127.0.0.1:8080."""
    found = os.environ if environ is None else environ
    if url := found.get("GOVERNOR_URL"):
        return url
    host = found.get("GOVERNOR_HOST") or "127.0.0.1"
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://{host}:{found.get('GOVERNOR_PORT') or 8080}"


class GatewayClient:
    """Requests to one gateway. Close it after use (`async with`)."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url = url.rstrip("/")
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        # A proxy of the environment cannot reach this machine's own ports.
        trusted = urlsplit(self.url).hostname not in _LOOPBACK
        self._http = httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=_TIMEOUT, trust_env=trusted
        )

    async def __aenter__(self) -> "GatewayClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def models(self) -> list[str]:
        """Names of the served models."""
        found = await self._json("/v1/models")
        return [card["id"] for card in found.get("data", [])]

    async def decision(self, decision_id: str) -> dict[str, Any]:
        """A decision's record and outcome."""
        return await self._json(f"/v1/governor/decisions/{quote(decision_id, safe='')}")

    @asynccontextmanager
    async def chat(self, body: dict[str, Any]) -> AsyncIterator["ChatStream"]:
        """An open chat completion. Raises GatewayRefused for any answer but a stream."""
        try:
            async with self._http.stream("POST", "/v1/chat/completions", json=body) as reply:
                if reply.status_code != 200:
                    await reply.aread()
                    raise refusal(reply)
                yield ChatStream(reply)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    async def signals(self, decision_id: str) -> AsyncIterator[dict[str, Any]]:
        """Rows of a running request's signals. Raises GatewayRefused where there are none."""
        path = f"/v1/governor/requests/{quote(decision_id, safe='')}/signals"
        try:
            async with self._http.stream("GET", path) as reply:
                if reply.status_code != 200:
                    await reply.aread()
                    raise refusal(reply)
                async for line in reply.aiter_lines():
                    if line:
                        yield json.loads(line)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        except ValueError as error:
            raise GatewayRefused(f"the signals are not JSON lines: {error}") from error

    async def _json(self, path: str) -> dict[str, Any]:
        try:
            reply = await self._http.get(path)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if reply.status_code != 200:
            raise refusal(reply)
        try:
            found = reply.json()
        except ValueError as error:
            raise GatewayRefused(f"{self.url}{path} did not answer with JSON") from error
        if not isinstance(found, dict):
            raise GatewayRefused(f"{self.url}{path} did not answer with a JSON object")
        return found

    def _unreachable(self, error: httpx.HTTPError) -> GatewayRefused:
        detail = str(error) or type(error).__name__
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            hint = "is it running? `governor serve --embedded` starts one"
            return GatewayRefused(f"no gateway at {self.url} ({detail}); {hint}")
        return GatewayRefused(f"the connection to {self.url} broke: {detail}")


class ChatStream:
    """The events of one streamed completion, as JSON objects."""

    def __init__(self, reply: httpx.Response) -> None:
        self.headers = reply.headers
        self._reply = reply
        self.done = False

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Each event; `done` tells afterwards whether the stream was complete."""
        decoder = SseDecoder()
        try:
            async for data in self._reply.aiter_bytes():
                for event in decoder.feed(data):
                    if event.data == b"[DONE]":
                        self.done = True
                    elif event.data is not None:
                        yield json.loads(event.data)
        except (UpstreamProtocolError, ValueError) as error:
            raise GatewayRefused(f"the stream cannot be read: {error}") from error


def refusal(reply: httpx.Response) -> GatewayRefused:
    """What an error answer says, for people."""
    message, code = f"HTTP {reply.status_code}", None
    try:
        error = reply.json()["error"]
        message = f"{error['message']} (HTTP {reply.status_code})"
        code = error.get("code")
    except (ValueError, KeyError, TypeError):
        if text := reply.text.strip():
            message += f": {text[:200]}"
    wait = reply.headers.get("retry-after")
    if wait is not None:
        message += f"; try again in {wait} s"
    return GatewayRefused(message, status=reply.status_code, code=code, retry_after_s=wait)
