"""Live embedded workers on free ports, in this process, and a client that reads their streams."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest


@dataclass
class Stream:
    """A finished chat or completion stream."""

    chunks: list[dict[str, Any]] = field(default_factory=list)
    done: bool = False

    @property
    def choices(self) -> list[dict[str, Any]]:
        return [c for chunk in self.chunks for c in chunk.get("choices", ())]

    @property
    def usage(self) -> dict[str, Any]:
        usage: dict[str, Any] = self.chunks[-1]["usage"]
        return usage

    @property
    def token_ids(self) -> list[int]:
        return [i for c in self.choices for i in c.get("token_ids") or ()]

    @property
    def finish_reason(self) -> str:
        return next(c["finish_reason"] for c in self.choices if c["finish_reason"])

    def text(self, name: str) -> str:
        return "".join(c["delta"].get(name) or "" for c in self.choices)


class LiveWorker:
    """One worker served by uvicorn in a thread."""

    def __init__(self, **settings: Any) -> None:
        import torch
        import uvicorn

        from governor_probes.embedded.server import build_app
        from governor_probes.embedded.settings import WorkerSettings

        torch.set_num_threads(1)
        self.settings = WorkerSettings(**settings)
        self.app = build_app(self.settings)
        self.worker = self.app.state.worker
        self.engine = self.worker.engine
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = uvicorn.Config(
            self.app, log_level="error", lifespan="on", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([listener],), daemon=True)
        self._thread.start()
        self.client = httpx.Client(base_url=self.url, timeout=60, trust_env=False)
        self.wait(lambda: self._server.started, "the server starts")
        self.wait(lambda: self.client.get("/health").status_code == 200, "the engine starts")

    def close(self) -> None:
        self.client.close()
        self.worker.feed.close()
        self._server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()

    def wait(self, condition: Callable[[], object], what: str, seconds: float = 20.0) -> None:
        """Polls until the condition holds; the deadline is the failure."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not in {seconds} s: {what}"
            threading.Event().wait(0.005)

    def body(self, content: str, **fields: Any) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": content}], **fields}

    def chat(self, content: str, **fields: Any) -> dict[str, Any]:
        reply = self.client.post("/v1/chat/completions", json=self.body(content, **fields))
        assert reply.status_code == 200, reply.text
        result: dict[str, Any] = reply.json()
        return result

    def post(self, path: str, body: Any) -> httpx.Response:
        return self.client.post(path, json=body)

    @contextlib.contextmanager
    def lines(self, path: str, body: dict[str, Any], **kwargs: Any) -> Iterator[Iterator[str]]:
        """The data lines of an SSE stream while it is open."""
        with self.client.stream("POST", path, json={**body, "stream": True}, **kwargs) as reply:
            if reply.status_code != 200:
                raise AssertionError(reply.read())
            yield (line[6:] for line in reply.iter_lines() if line.startswith("data: "))

    def stream(self, content: str, **fields: Any) -> Stream:
        fields.setdefault("return_token_ids", True)
        fields.setdefault("stream_options", {"include_usage": True})
        return self.read("/v1/chat/completions", self.body(content, **fields))

    def read(self, path: str, body: dict[str, Any]) -> Stream:
        result = Stream()
        with self.lines(path, body) as lines:
            for line in lines:
                if line == "[DONE]":
                    result.done = True
                else:
                    result.chunks.append(json.loads(line))
        return result

    def metric(self, name: str, **labels: str) -> float:
        wanted = [f'{k}="{v}"' for k, v in labels.items()]
        for line in self.client.get("/metrics").text.splitlines():
            if line.startswith(f"vllm:{name}{{") and all(w in line for w in wanted):
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"no metric vllm:{name} {labels}")

    def control(self, rid: str, op: str, arg: Any, fence: int = 1, attempt: int = 0) -> Any:
        message = {"schema": "governor.control/1", "rid": rid, "attempt": attempt, "op": op}
        reply = self.post("/governor/v1/control", {**message, "arg": arg, "fence": fence})
        assert reply.status_code == 200, reply.text
        return reply.json()


class SignalReader:
    """Subscribes to a worker's signals in a thread and keeps every batch."""

    def __init__(self, live: LiveWorker) -> None:
        self.batches: list[dict[str, Any]] = []
        self._live = live
        self._closed = False
        self._client = httpx.Client(base_url=live.url, timeout=60, trust_env=False)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        live.wait(lambda: self.batches, "the first signals line")

    def _run(self) -> None:
        # httpx raises when close() takes the connection away: that is how a reader ends.
        with (
            contextlib.suppress(httpx.HTTPError, httpx.StreamError, OSError),
            self._client.stream("GET", "/governor/v1/signals") as reply,
        ):
            for line in reply.iter_lines():
                self.batches.append(json.loads(line))
                if self._closed:
                    return

    def rows(self, rid: str) -> list[list[Any]]:
        return [row for batch in list(self.batches) for row in batch["rows"] if row[0] == rid]

    def finished(self, rid: str) -> list[list[Any]]:
        """All rows of a request once its last one is there."""
        self._live.wait(
            lambda: any(row[7] & 32 for row in self.rows(rid)), f"the last row of {rid}"
        )
        return self.rows(rid)

    def close(self) -> None:
        self._closed = True
        self._thread.join(5)
        self._client.close()


def _serve(**settings: Any) -> Iterator[LiveWorker]:
    live = LiveWorker(**settings)
    try:
        yield live
    finally:
        live.close()


@pytest.fixture(scope="session")
def serve() -> type[LiveWorker]:
    """Starts a worker with settings of the test's own; the caller closes it."""
    return LiveWorker


@pytest.fixture(scope="session")
def live() -> Iterator[LiveWorker]:
    """A worker with one token per chunk and a large pool."""
    yield from _serve(num_blocks=1024)


@pytest.fixture(scope="session", params=[1, 3, 20])
def live_by_interval(request: pytest.FixtureRequest) -> Iterator[LiveWorker]:
    """Workers that pack 1, 3 and 20 tokens into a chunk."""
    yield from _serve(num_blocks=512, stream_interval=request.param)


@pytest.fixture(scope="module")
def live_small() -> Iterator[LiveWorker]:
    """A worker whose pool holds 24 blocks of 8 tokens."""
    yield from _serve(num_blocks=24, block_size=8, max_num_seqs=16)


@pytest.fixture
def signals(live: LiveWorker) -> Iterator[SignalReader]:
    """A subscription to the large worker's signals."""
    reader = SignalReader(live)
    yield reader
    reader.close()


@pytest.fixture
def read_signals() -> Iterator[Callable[[LiveWorker], SignalReader]]:
    """Subscribes to any worker."""
    readers: list[SignalReader] = []

    def subscribe(live: LiveWorker) -> SignalReader:
        readers.append(SignalReader(live))
        return readers[-1]

    yield subscribe
    for reader in readers:
        reader.close()
