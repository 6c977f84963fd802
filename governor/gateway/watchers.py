"""Watchers: who looks at the signals of a running request (`governor ask`). Bounded."""

import asyncio
import json
from collections.abc import AsyncIterator

from governor.core.signals import SignalRow

# Rows that a slow watcher may lag behind; older ones are dropped for it alone.
MOST_PENDING_ROWS = 1_024


class Watchers:
    """Fan-out of signal rows by decision id. Publishing to nobody costs a dictionary look-up."""

    def __init__(self) -> None:
        self._queues: dict[str, set[asyncio.Queue[bytes | None]]] = {}

    def publish(self, row: SignalRow) -> None:
        """Give a row to those who watch its request."""
        queues = self._queues.get(row.rid)
        if not queues:
            return
        line = json.dumps(
            {
                "position": row.position,
                "entropy": row.entropy,
                "margin": row.margin,
                "flags": int(row.flags),
            }
        )
        for queue in queues:
            _put(queue, line.encode() + b"\n")

    def end(self, decision_id: str) -> None:
        """The request is over."""
        for queue in self._queues.pop(decision_id, ()):
            _put(queue, None)

    def lines(self, decision_id: str) -> AsyncIterator[bytes]:
        """NDJSON rows of one request, from this call on until it ends. Call it for a request that
        runs; nobody would end another."""
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(MOST_PENDING_ROWS)
        self._queues.setdefault(decision_id, set()).add(queue)
        return self._drain(decision_id, queue)

    async def _drain(
        self, decision_id: str, queue: "asyncio.Queue[bytes | None]"
    ) -> AsyncIterator[bytes]:
        try:
            while (line := await queue.get()) is not None:
                yield line
        finally:
            queues = self._queues.get(decision_id)
            if queues is not None:
                queues.discard(queue)
                if not queues:
                    del self._queues[decision_id]


def _put(queue: "asyncio.Queue[bytes | None]", line: bytes | None) -> None:
    if queue.full():
        queue.get_nowait()
    queue.put_nowait(line)
