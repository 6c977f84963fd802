"""A gateway that answers from a script, for tests of its clients. Served by uvicorn in a thread."""

import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

DECISION_ID = "d0123456789abcdef"
HEADERS = {
    "x-governor-decision": DECISION_ID,
    "x-governor-mode": "enforce",
    "x-governor-budget-asked": "40",
    "x-governor-budget-granted": "40",
    "x-governor-budget-reason": "client_budget",
    "x-governor-budget-path": "native",
    "x-governor-queue-ms": "12",
}
BLOCK = {
    "decision_id": DECISION_ID,
    "mode": "enforce",
    "asked_tokens": 40,
    "granted_tokens": 40,
    "granted_reason": "client_budget",
    "thinking_off": False,
    "budget_path": "native",
    "queued_ms": 12,
    "forecast_p50_tokens": 30,
    "forecast_p90_tokens": 90,
    "forecast_fallback": True,
    "notes": ["n > 1: admitted and relayed, never landed"],
    "used_tokens": 38,
    "answer_tokens": 3,
    "exact": True,
    "cause": "wrapped_up",
    "landed": "loop",
    "landing_path": "control",
}


def delta(**fields: Any) -> dict[str, Any]:
    """One chunk with one choice."""
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "tiny"}
    return {**chunk, "choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


@dataclass
class FakeGateway:
    """What it is to answer, and what it was asked."""

    url: str = ""
    chunks: list[dict[str, Any]] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=lambda: dict(HEADERS))
    finish: bool = True
    signal_rows: list[dict[str, Any]] | None = None
    refuse: Callable[[], Response] | None = None
    decisions: dict[str, Any] = field(default_factory=dict)
    models: list[str] = field(default_factory=lambda: ["tiny"])
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)

    async def list_models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": name} for name in self.models]})

    async def chat(self, request: Request) -> Response:
        self.bodies.append(await request.json())
        self.keys.append(request.headers.get("authorization"))
        if self.refuse is not None:
            return self.refuse()

        async def events() -> AsyncIterator[bytes]:
            for chunk in self.chunks:
                yield f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n".encode()
            if self.finish:
                yield b"data: [DONE]\n\n"

        return StreamingResponse(events(), 200, self.headers, "text/event-stream")

    async def signals(self, request: Request) -> Response:
        rows = self.signal_rows
        if rows is None or request.path_params["decision_id"] != DECISION_ID:
            return missing("no such request is running")

        async def lines() -> AsyncIterator[bytes]:
            for row in rows:
                yield json.dumps(row).encode() + b"\n"

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    async def decision(self, request: Request) -> Response:
        found = self.decisions.get(request.path_params["decision_id"])
        return missing("no such decision is kept") if found is None else JSONResponse(found)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/models", self.list_models),
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/v1/governor/requests/{decision_id}/signals", self.signals),
                Route("/v1/governor/decisions/{decision_id}", self.decision),
            ]
        )


def missing(message: str) -> Response:
    """A 404 in OpenAI's form."""
    return error(404, message, "not_found")


def error(status: int, message: str, code: str, **headers: str) -> Response:
    """An OpenAI error body."""
    body = {"error": {"message": message, "type": "server_error", "param": None, "code": code}}
    return JSONResponse(body, status, {k.replace("_", "-"): v for k, v in headers.items()})


@contextmanager
def served() -> Iterator[FakeGateway]:
    """A fake gateway on a free port for the time of the block."""
    gateway = FakeGateway()
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    gateway.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(gateway.app(), log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    deadline = time.monotonic() + 10
    while not server.started:
        assert time.monotonic() < deadline, "the fake gateway did not start"
        threading.Event().wait(0.005)
    try:
        yield gateway
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
        assert not thread.is_alive()
