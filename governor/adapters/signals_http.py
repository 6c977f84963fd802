"""SignalSubscriber: a worker's signal feed (contract a) over one endless HTTP response.

Fails open: while the feed is away, streams are watched by what they carry themselves; `on_state`
tells, and a reconnect with backoff goes on for as long as the task runs.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable

import httpx

from governor.core.errors import UpstreamProtocolError
from governor.core.signals import SignalRow, decode_batch

log = logging.getLogger("governor.signals")

# The worker sends an empty batch every second; three missed ones mean that the feed is lost.
SILENCE_S = 3.0
BACKOFF_S = (0.1, 2.0)
# A batch holds the rows of one step: some kilobytes with hundreds of running requests.
LONGEST_LINE = 4 * 1024 * 1024


class SignalSubscriber:
    """One worker's feed. Callbacks are synchronous; one that raises ends the subscription, which
    is then taken up again."""

    def __init__(
        self,
        base_url: str,
        key: str | None,
        on_rows: Callable[[tuple[SignalRow, ...]], None],
        on_state: Callable[[bool, str], None],
        *,
        silence_s: float = SILENCE_S,
        backoff_s: tuple[float, float] = BACKOFF_S,
        longest_line: int = LONGEST_LINE,
    ) -> None:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        timeout = httpx.Timeout(5.0, read=silence_s)
        self._client = httpx.AsyncClient(base_url=base_url, headers=headers, timeout=timeout)
        self._on_rows = on_rows
        self._on_state = on_state
        self._backoff_s = backoff_s
        self._longest_line = longest_line

    async def run(self) -> None:
        """Subscribe and stay subscribed until cancelled."""
        pause_s, longest_s = self._backoff_s
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            try:
                await self._subscribe()
                detail = "the worker ended the feed"
            except (httpx.HTTPError, UpstreamProtocolError, ValueError) as error:
                detail = f"{type(error).__name__}: {error}"
            except Exception as error:
                log.exception("the signal feed failed")
                detail = repr(error)
            if loop.time() - began_s > longest_s:
                pause_s = self._backoff_s[0]
            self._tell(False, detail)
            await asyncio.sleep(pause_s)
            pause_s = min(longest_s, pause_s * 2)

    def _tell(self, alive: bool, detail: str) -> None:
        try:
            self._on_state(alive, detail)
        except Exception:
            log.exception("the state of the signal feed could not be told")

    async def _subscribe(self) -> None:
        async with self._client.stream("GET", "/governor/v1/signals") as response:
            if response.status_code != 200:
                raise UpstreamProtocolError(f"the feed answered {response.status_code}")
            alive = False
            async for line in self._lines(response):
                batch = decode_batch(json.loads(line))
                if not alive:
                    self._tell(True, batch.worker_epoch)
                    alive = True
                if batch.faults:
                    log.warning("%d rows of the feed could not be read", batch.faults)
                if batch.rows:
                    self._on_rows(batch.rows)

    async def _lines(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """Lines by LF alone: JSON text may hold the other line ends of Unicode."""
        rest = b""
        async for data in response.aiter_bytes():
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if line.strip():
                    yield line
            if len(rest) > self._longest_line:
                raise UpstreamProtocolError(f"a line of over {self._longest_line} bytes")

    async def close(self) -> None:
        """Close the connection."""
        await self._client.aclose()
