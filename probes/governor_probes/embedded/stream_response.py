"""An ASGI response that streams bytes and notices at once when the client goes away."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send


class StreamResponse(Response):
    """Streams an async iterator. When the client leaves, `on_gone` runs and the iterator is closed.

    Starlette's own streaming response learns of a disconnect only when it sends, which a request
    that waits in the engine's queue does not do.
    """

    def __init__(
        self, body: AsyncGenerator[bytes], media_type: str, on_gone: Callable[[], None]
    ) -> None:
        super().__init__(media_type=media_type)
        del self.headers["content-length"]
        self._stream = body
        self._on_gone = on_gone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends head and body; returns when the body ends or the client is gone."""
        watcher = asyncio.ensure_future(self._watch(receive))
        sender = asyncio.ensure_future(self._send(send))
        try:
            await asyncio.wait({watcher, sender}, return_when=asyncio.FIRST_COMPLETED)
            if not sender.done():
                self._on_gone()
        finally:
            for task in (watcher, sender):
                task.cancel()
            results = await asyncio.gather(watcher, sender, return_exceptions=True)
        if isinstance(results[1], Exception) and not isinstance(results[1], OSError):
            raise results[1]

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async def _send(self, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        async with aclosing(self._stream) as chunks:
            async for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
