"""The worker as a process: it comes up from the command line and ends on SIGTERM with status 0."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.slow


def test_sigterm_lets_an_open_stream_end_and_exits_with_zero() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    root = Path(__file__).parents[2]
    path = os.pathsep.join(str(root / part) for part in (".", "probes", "kernels"))
    process = subprocess.Popen(
        [sys.executable, "-m", "governor_probes.embedded", "--port", str(port)],
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            _wait_healthy(client, process)
            body = {
                "messages": [{"role": "user", "content": "sum h8s2k9a1b2"}],
                "stream": True,
                "ignore_eos": True,
                "max_tokens": 300,
            }
            with client.stream("POST", "/v1/chat/completions", json=body, timeout=20) as reply:
                lines = reply.iter_lines()
                next(lines)
                process.send_signal(signal.SIGTERM)
                rest = [line for line in lines if line]
            assert rest[-1] == "data: [DONE]"
        assert process.wait(15) == 0
    finally:
        process.kill()
        process.wait()


def _wait_healthy(client: httpx.Client, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, "the worker ended while starting"
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            threading.Event().wait(0.1)
    raise AssertionError("the worker did not come up in 60 s")
