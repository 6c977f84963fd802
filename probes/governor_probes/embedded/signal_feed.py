"""Spreads signal rows to subscribers as newline-delimited JSON (contract governor.signals/1)."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from governor.core.signals import SIGNALS_SCHEMA, SignalFlag
from governor_probes.embedded.request import SignalRow

FLUSH_S = 0.01
KEEP_ALIVE_S = 1.0


class Subscriber:
    """One subscriber's bounded queue of rows; the oldest are dropped when it is full."""

    def __init__(self, worker_epoch: str, limit_rows: int) -> None:
        self._epoch = worker_epoch
        self._rows: deque[SignalRow] = deque(maxlen=limit_rows)
        self._lost = False
        self._seq = -1
        self.wake = asyncio.Event()

    def push(self, rows: list[SignalRow]) -> None:
        """Adds rows from the event loop."""
        limit = self._rows.maxlen
        if limit is not None and len(self._rows) + len(rows) > limit:
            self._lost = True
        self._rows.extend(rows)
        self.wake.set()

    def batch(self) -> bytes:
        """One line with all waiting rows; after a loss each of them carries GAP."""
        rows: list[Any] = list(self._rows)
        self._rows.clear()
        self.wake.clear()
        if self._lost:
            rows = [row._replace(flags=row.flags | SignalFlag.GAP) for row in rows]
            self._lost = False
        self._seq += 1
        line = {
            "schema": SIGNALS_SCHEMA,
            "worker_epoch": self._epoch,
            "seq": self._seq,
            "rows": rows,
        }
        return msgspec.json.encode(line) + b"\n"


class SignalFeed:
    """All subscribers of a worker. Lives on the event loop."""

    def __init__(self, worker_epoch: str, limit_rows: int = 8192) -> None:
        self._epoch = worker_epoch
        self._limit = limit_rows
        self._subscribers: set[Subscriber] = set()
        self._closed = False

    def close(self) -> None:
        """Ends every subscriber's stream: the worker shuts down."""
        self._closed = True
        for subscriber in self._subscribers:
            subscriber.wake.set()

    def publish(self, rows: list[SignalRow]) -> None:
        """Hands rows to every subscriber; never waits for one."""
        for subscriber in self._subscribers:
            subscriber.push(rows)

    async def lines(self) -> AsyncGenerator[bytes]:
        """One subscriber's stream: an empty first line, then batches and keep-alives."""
        subscriber = Subscriber(self._epoch, self._limit)
        self._subscribers.add(subscriber)
        try:
            yield subscriber.batch()
            while not self._closed:
                try:
                    await asyncio.wait_for(subscriber.wake.wait(), KEEP_ALIVE_S)
                    # Rows of one engine step arrive together; a short wait joins a few steps.
                    await asyncio.sleep(FLUSH_S)
                except TimeoutError:
                    pass
                yield subscriber.batch()
        finally:
            self._subscribers.discard(subscriber)
