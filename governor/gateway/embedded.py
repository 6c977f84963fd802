"""The embedded worker as a child process: start, wait until it is healthy, stop with the gateway.

Fail closed: a worker that does not become healthy in time stops the start with its last output.
"""

import asyncio
import os
import signal
import sys
from dataclasses import dataclass, field

import httpx


class EmbeddedWorkerFailed(RuntimeError):
    """The embedded worker ended or did not become healthy."""


@dataclass(slots=True)
class EmbeddedWorker:
    """One child process serving the shipped model on `host:port`."""

    host: str
    port: int
    arguments: tuple[str, ...] = ()
    _process: asyncio.subprocess.Process | None = field(default=None, init=False)

    @property
    def url(self) -> str:
        """Base URL of the worker."""
        return f"http://{self.host}:{self.port}"

    async def start(self, timeout_s: float = 120.0) -> None:
        """Start the process and wait for `/health`. Raises `EmbeddedWorkerFailed`."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "governor_probes.embedded",
            "--host",
            self.host,
            "--port",
            str(self.port),
            *self.arguments,
            # Its own process group: Ctrl-C at a terminal reaches the gateway, which drains first.
            start_new_session=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
        try:
            async with asyncio.timeout(timeout_s), httpx.AsyncClient(timeout=2.0) as client:
                while not await self._healthy(client):
                    await asyncio.sleep(0.2)
        except TimeoutError:
            await self.stop()
            raise EmbeddedWorkerFailed(f"not healthy after {timeout_s:.0f} s: {self.url}") from None

    async def _healthy(self, client: httpx.AsyncClient) -> bool:
        assert self._process is not None
        if self._process.returncode is not None:
            raise EmbeddedWorkerFailed(f"ended with exit code {self._process.returncode}")
        try:
            return (await client.get(f"{self.url}/health")).status_code == 200
        except httpx.HTTPError:
            return False

    async def stop(self, timeout_s: float = 10.0) -> None:
        """End the process: SIGTERM, then SIGKILL."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(timeout_s):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
