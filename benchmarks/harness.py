"""Worker and gateway processes for a benchmark: start, wait until ready, scrape, stop.

Streams are read by `client.py`; arguments, figures and intervals are in `report.py`.
"""

import asyncio
import atexit
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import httpx
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parent.parent
DEFAULT_POLICY = ROOT / "policies" / "default.yaml"
START_S = 120.0
STOP_S = 15.0


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """An embedded worker; `settings` are its options: `{"num_blocks": 512}` is --num-blocks=512."""

    name: str = "worker"
    settings: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GatewayPlan:
    """A `governor serve` in front of the workers named; `options` as they are typed."""

    name: str = "gateway"
    workers: tuple[str, ...] = ("worker",)
    policy: Path = DEFAULT_POLICY
    options: tuple[str, ...] = ()


class StackFailed(Exception):
    """A process ended or did not become ready; its log's tail has been printed."""


@dataclass(slots=True)
class _Server:
    name: str
    url: str
    log: Path
    process: subprocess.Popen[bytes]

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-lines:])


class Stack:
    """Workers and gateways on free loopback ports, as an async context manager.

    On entry all are ready: workers answer /health, gateways have joined every worker of theirs with
    fresh metrics and a live signal feed. On exit all are stopped, SIGTERM included; where the body
    raised, the tails of the logs go to standard error.
    """

    def __init__(
        self, workers: Sequence[WorkerPlan] = (), gateways: Sequence[GatewayPlan] = ()
    ) -> None:
        self._workers, self._gateways = tuple(workers), tuple(gateways)
        self._servers: dict[str, _Server] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="governor-bench-")

    def url(self, name: str) -> str:
        """Base URL of a worker or gateway. Raises KeyError for a name that was not planned."""
        return self._servers[name].url

    def pid(self, name: str) -> int:
        """Process id of a worker or gateway."""
        return self._servers[name].process.pid

    def log(self, name: str) -> str:
        """The end of its output."""
        return self._servers[name].tail()

    async def __aenter__(self) -> "Stack":
        # SIGTERM ends the body as an interrupt does, so that no process is left behind.
        task = asyncio.current_task()
        if task is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        try:
            for worker in self._workers:
                options = [f"--{k.replace('_', '-')}={v}" for k, v in worker.settings.items()]
                self._start(
                    worker.name, [sys.executable, "-m", "governor_probes.embedded"], options
                )
            await asyncio.gather(*(self._until_ready(w.name, _healthy) for w in self._workers))
            for gateway in self._gateways:
                options = [f"--worker={self.url(name)}" for name in gateway.workers]
                options += [f"--policy={gateway.policy}", "--host=127.0.0.1"]
                options += ["--log-level=warning", *gateway.options]
                program = str(Path(sys.executable).with_name("governor"))
                self._start(gateway.name, [program, "serve"], options)
            await asyncio.gather(*(self._until_ready(g.name, _joined) for g in self._gateways))
        except BaseException:
            await self._stop(failed=True)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stop(failed=error is not None)

    def _start(self, name: str, program: list[str], options: list[str]) -> None:
        if name in self._servers:
            raise ValueError(f"two servers are called {name}")
        port = free_port()
        log = Path(self._folder.name) / f"{name}.log"
        paths = os.pathsep.join(str(ROOT / part) for part in (".", "probes", "kernels"))
        clean = {k: v for k, v in os.environ.items() if not k.startswith("GOVERNOR_")}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*program, f"--port={port}", *options],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**clean, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"},
            )
        self._servers[name] = _Server(name, f"http://127.0.0.1:{port}", log, process)

    async def _until_ready(self, name: str, ready: Callable[[httpx.Response], bool]) -> None:
        server = self._servers[name]
        path = "/health" if ready is _healthy else "/readyz"
        deadline = time.perf_counter() + START_S
        async with httpx.AsyncClient(timeout=5, trust_env=False) as client:
            while True:
                if server.process.poll() is not None:
                    raise StackFailed(f"{name} ended with status {server.process.returncode}")
                try:
                    if ready(await client.get(server.url + path)):
                        return
                except httpx.TransportError:
                    pass
                if time.perf_counter() > deadline:
                    raise StackFailed(f"{name} is not ready after {START_S:.0f} s")
                await asyncio.sleep(0.1)

    async def _stop(self, *, failed: bool) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
        if failed:
            for server in self._servers.values():
                print(f"--- {server.name}\n{server.tail()}", file=sys.stderr)
        # Gateways first: they drain towards workers that still answer.
        for server in reversed(self._servers.values()):
            server.process.terminate()
        for server in self._servers.values():
            try:
                await asyncio.to_thread(server.process.wait, STOP_S)
            except subprocess.TimeoutExpired:
                server.process.kill()
                server.process.wait()
        self._folder.cleanup()


def _healthy(reply: httpx.Response) -> bool:
    return reply.status_code == 200


def _joined(reply: httpx.Response) -> bool:
    if reply.status_code != 200:
        return False
    states = reply.json()["workers"].values()
    return all(state["joined"] and state["fresh"] and state["signals"] for state in states)


def free_port() -> int:
    """A port on loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def policy(text: str) -> Path:
    """A policy file with this text; it is removed when the process ends."""
    handle, name = tempfile.mkstemp(prefix="governor-policy-", suffix=".yaml")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    path = Path(name)
    atexit.register(path.unlink, missing_ok=True)
    return path


async def scrape(url: str) -> dict[str, float]:
    """Metrics of a server: the sum of each over its labels, by sample name (`…_total`, `…_sum`).

    Raises httpx.HTTPError where the server does not answer.
    """
    async with httpx.AsyncClient(timeout=10, trust_env=False) as client:
        reply = await client.get(f"{url}/metrics")
    reply.raise_for_status()
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(reply.text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums
