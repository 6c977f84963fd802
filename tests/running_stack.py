"""Real worker and gateway processes for tests: start, wait until ready, read their state, stop."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parent.parent
START_S = 90.0


def free_port() -> int:
    """A port on loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], object], what: str, seconds: float = 20.0) -> Any:
    """The condition's value once it is true; the deadline is the failure."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not in {seconds:.0f} s: {what}"
        threading.Event().wait(0.02)
    return found


class Process:
    """A child process with its output in a file."""

    def __init__(self, command: list[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.log = log
        path = os.pathsep.join(str(ROOT / part) for part in (".", "probes", "kernels"))
        clean = {k: v for k, v in os.environ.items() if not k.startswith("GOVERNOR_")}
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**clean, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **(env or {})},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, seconds: float = 30.0) -> int:
        """The exit code."""
        return self._process.wait(seconds)

    def stop(self) -> None:
        """SIGTERM, then SIGKILL."""
        if self.running:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()

    def tail(self, characters: int = 6_000) -> str:
        """The end of its output."""
        return self.log.read_text("utf-8", "replace")[-characters:]


class Server:
    """What listens on a port of this machine, and a client for it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.url, timeout=60, trust_env=False)

    def answers(self, path: str) -> bool:
        """Whether `path` answers with 200."""
        try:
            return self.http.get(path, timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def metrics(self) -> dict[str, float]:
        """Sum of each metric over its labels."""
        sums: dict[str, float] = {}
        for family in text_string_to_metric_families(self.http.get("/metrics").text):
            for sample in family.samples:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
        return sums


class Worker(Server):
    """An embedded worker process."""

    def __init__(self, log: Path, *, port: int | None = None, **settings: object) -> None:
        super().__init__(port or free_port())
        arguments = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        self.process = Process(
            [sys.executable, "-m", "governor_probes.embedded", f"--port={self.port}", *arguments],
            log,
        )

    def ready(self) -> bool:
        """Whether it serves; a process that has ended fails the test at once."""
        assert self.process.running, self.process.tail()
        return self.answers("/health")

    @property
    def idle(self) -> bool:
        """Whether it neither runs nor queues anything."""
        found = self.metrics()
        return found["vllm:num_requests_running"] + found["vllm:num_requests_waiting"] == 0

    def close(self) -> None:
        self.http.close()
        self.process.stop()


class Gateway(Server):
    """A `governor serve` process."""

    def __init__(
        self, log: Path, workers: list[Worker], policy: Path, *options: str, **env: str
    ) -> None:
        super().__init__(free_port())
        self.workers = workers
        self.policy = policy
        command = [
            str(Path(sys.executable).with_name("governor")),
            "serve",
            f"--port={self.port}",
            f"--policy={policy}",
            "--host=127.0.0.1",
            *(f"--worker={worker.url}" for worker in workers),
            *options,
        ]
        self.process = Process(command, log, env={"COLUMNS": "200", **env})

    def ready(self) -> bool:
        """Whether every worker is joined, fresh and signalling."""
        assert self.process.running, self.process.tail()
        if not self.answers("/readyz"):
            return False
        states = self.readiness()["workers"].values()
        return all(state["joined"] and state["fresh"] and state["signals"] for state in states)

    def readiness(self) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get("/readyz").json()
        return found

    def chat(self, content: str, **fields: Any) -> "Answer":
        """A whole chat completion."""
        headers = fields.pop("headers", None)
        body = chat_body(content, **fields)
        reply = self.http.post("/v1/chat/completions", json=body, headers=headers)
        assert reply.status_code == 200, reply.text
        return Answer(dict(reply.headers), caller=headers, whole=reply.json())

    def stream(self, content: str, **fields: Any) -> "Answer":
        """A streamed chat completion, read to its end."""
        with self.open(content, **fields) as answer:
            answer.read()
        return answer

    @contextlib.contextmanager
    def open(self, content: str, **fields: Any) -> Iterator["Answer"]:
        """A chat stream that is still open."""
        headers = fields.pop("headers", None)
        body = chat_body(content, stream=True, **fields)
        with self.http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as reply:
            if reply.status_code != 200:
                raise AssertionError(f"{reply.status_code} {reply.read().decode()}")
            yield Answer(dict(reply.headers), caller=headers, lines=reply.iter_lines())

    def decision(
        self, answer: "Answer | str", headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """Record and outcome, once the request has ended, for who made it."""
        decision_id, caller = (answer, headers) if isinstance(answer, str) else answer.made_by

        def ended() -> dict[str, Any] | None:
            reply = self.http.get(f"/v1/governor/decisions/{decision_id}", headers=caller)
            assert reply.status_code == 200, reply.text
            found: dict[str, Any] = reply.json()
            return found if found["outcome"] is not None else None

        result: dict[str, Any] = wait_for(ended, f"the outcome of {decision_id}")
        return result

    def land(self, answer: "Answer | str", headers: dict[str, str] | None = None) -> httpx.Response:
        """An operator's landing of a request, by who made it unless `headers` say otherwise."""
        decision_id, caller = (answer, headers) if isinstance(answer, str) else answer.made_by
        path = f"/v1/governor/requests/{decision_id}/land"
        return self.http.post(path, headers=headers or caller)

    def assert_nothing_held(self) -> None:
        """No lease, stream or queued request is left, here or on the workers."""
        gauges = ("governor_leases_active", "governor_streams_open", "governor_requests_waiting")

        def held() -> dict[str, float]:
            found = self.metrics()
            return {name: found[name] for name in gauges if found[name]}

        try:
            wait_for(lambda: not held(), "nothing held")
        except AssertionError:
            raise AssertionError(f"still held: {held()}, {self.readiness()}") from None
        state = self.readiness()
        assert (state["in_flight"], state["waiting"]) == (0, 0)
        for worker in self.workers:
            wait_for(lambda worker=worker: worker.idle, f"{worker.url} is idle")

    def close(self) -> None:
        self.http.close()
        self.process.stop()


def chat_body(content: str, **fields: Any) -> dict[str, Any]:
    """A chat completion of the shipped model."""
    messages = [{"role": "user", "content": content}]
    return {"model": "tiny-reasoner", "messages": messages, **fields}


@dataclass
class Answer:
    """One answer, streamed or whole."""

    headers: dict[str, str]
    caller: dict[str, str] | None = None
    whole: dict[str, Any] | None = None
    lines: Iterator[str] | None = None
    chunks: list[dict[str, Any]] = field(default_factory=list)
    raw: list[str] = field(default_factory=list)
    done: bool = False

    def next_chunk(self) -> dict[str, Any] | None:
        """The next event of the stream; None at its end."""
        assert self.lines is not None
        for line in self.lines:
            if line:
                self.raw.append(line)
            if line == "data: [DONE]":
                self.done = True
            elif line.startswith("data: "):
                self.chunks.append(json.loads(line[6:]))
                return self.chunks[-1]
        return None

    def read(self) -> "Answer":
        """Read to the end."""
        while self.next_chunk() is not None:
            pass
        return self

    def read_thinking(self, characters: int) -> None:
        """Read until so much of the thinking is there."""
        while len(self.reasoning) < characters:
            assert self.next_chunk() is not None, f"the stream ended: {self.raw[-3:]}"

    @property
    def id(self) -> str:
        return self.headers["x-governor-decision"]

    @property
    def made_by(self) -> tuple[str, dict[str, str] | None]:
        """The decision's id and the caller's headers."""
        return self.id, self.caller

    @property
    def choices(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for chunk in self.chunks if self.whole is None else [self.whole]:
            found += chunk.get("choices", [])
        return found

    def text(self, *names: str) -> str:
        """The text of the first of these members, in order of appearance."""
        parts = [choice.get("delta") or choice.get("message") or {} for choice in self.choices]
        return "".join(part.get(name) or "" for part in parts for name in names)

    @property
    def reasoning(self) -> str:
        return self.text("reasoning")

    @property
    def content(self) -> str:
        return self.text("content").strip()

    @property
    def finish_reason(self) -> str | None:
        reasons = [choice["finish_reason"] for choice in self.choices if choice["finish_reason"]]
        return reasons[-1] if reasons else None

    @property
    def token_ids(self) -> list[int]:
        return [i for choice in self.choices for i in choice.get("token_ids") or ()]

    @property
    def usage(self) -> dict[str, Any]:
        events = self.chunks if self.whole is None else [self.whole]
        found = [event["usage"] for event in events if event.get("usage")]
        usage: dict[str, Any] = found[-1]
        return usage

    @property
    def governor(self) -> dict[str, Any]:
        events = self.chunks if self.whole is None else [self.whole]
        blocks = [event["governor"] for event in events if event.get("governor")]
        assert len(blocks) == 1, blocks
        block: dict[str, Any] = blocks[0]
        return block
