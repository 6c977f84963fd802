"""SignalSubscriber: a worker's signal feed (contract a) over one endless HTTP response.

Fails open: while the feed is away, streams are watched by what they carry themselves; `on_state`
tells, and a reconnect with backoff goes on for as long as the task runs.
"""

import asyncio
import json
import logging
from collections.abc import Callable

import httpx

from governor.core.errors import UpstreamProtocolError
from governor.core.signals import SignalRow, decode_batch

log = logging.getLogger("governor.signals")

# The worker sends an empty batch every second; three missed ones mean that the feed is lost.
SILENCE_S = 3.0
BACKOFF_S = (0.1, 2.0)


class SignalSubscriber:
    """One worker's feed. Callbacks are synchronous and must not raise."""

    def __init__(
        self,
        base_url: str,
        key: str | None,
        on_rows: Callable[[tuple[SignalRow, ...]], None],
        on_state: Callable[[bool, str], None],
    ) -> None:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        timeout = httpx.Timeout(5.0, read=SILENCE_S)
        self._client = httpx.AsyncClient(base_url=base_url, headers=headers, timeout=timeout)
        self._on_rows = on_rows
        self._on_state = on_state

    async def run(self) -> None:
        """Subscribe and stay subscribed until cancelled."""
        pause_s, longest_s = BACKOFF_S
        while True:
            try:
                await self._subscribe()
                detail = "the worker ended the feed"
            except (httpx.HTTPError, UpstreamProtocolError, ValueError) as error:
                detail = f"{type(error).__name__}: {error}"
            self._on_state(False, detail)
            await asyncio.sleep(pause_s)
            pause_s = min(longest_s, pause_s * 2)

    async def _subscribe(self) -> None:
        async with self._client.stream("GET", "/governor/v1/signals") as response:
            if response.status_code != 200:
                raise UpstreamProtocolError(f"the feed answered {response.status_code}")
            epoch: str | None = None
            async for line in response.aiter_lines():
                if not line:
                    continue
                batch = decode_batch(json.loads(line))
                if epoch is None:
                    self._on_state(True, batch.worker_epoch)
                epoch = batch.worker_epoch
                if batch.faults:
                    log.warning("%d rows of the feed could not be read", batch.faults)
                if batch.rows:
                    self._on_rows(batch.rows)

    async def close(self) -> None:
        """Close the connection."""
        await self._client.aclose()
