"""Waits for a whole reply while watching whether the client is still there."""

import asyncio
from collections.abc import AsyncIterator

from governor_probes.embedded.api_error import ApiError
from governor_probes.embedded.engine_transformers import EngineDead
from governor_probes.embedded.generation import Generation, Receive
from governor_probes.embedded.request import OutputBatch
from governor_probes.embedded.worker import Worker


async def collect(
    worker: Worker, generation: Generation, receive: Receive
) -> AsyncIterator[tuple[int, OutputBatch]]:
    """Yields (choice, batch) until all choices have ended; aborts them if the client leaves.

    Raises:
        ApiError: 500 when the engine fails; 499 when the client has left, which nobody reads.
    """
    watcher = asyncio.ensure_future(generation.watch(receive))
    try:
        async for arrived in generation.batches():
            for index, batch in arrived:
                if batch.error is not None:
                    raise ApiError(500, batch.error)
                yield index, batch
        if generation.gone:
            raise ApiError(499, "the client has gone")
    except EngineDead as error:
        raise ApiError(500, str(error)) from error
    finally:
        watcher.cancel()
        worker.close(generation)
