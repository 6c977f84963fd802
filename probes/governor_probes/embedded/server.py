"""The worker's HTTP application: OpenAI routes as vLLM has them, and Governor's contract (a)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from governor_probes.embedded.api_error import ApiError, bad_request
from governor_probes.embedded.chat_route import chat_completions
from governor_probes.embedded.completion_route import completions
from governor_probes.embedded.control import ControlReply, parse_control
from governor_probes.embedded.engine_transformers import EngineDead
from governor_probes.embedded.http_io import error_response, json_response, read_body
from governor_probes.embedded.settings import WorkerSettings
from governor_probes.embedded.stream_response import StreamResponse
from governor_probes.embedded.worker import Worker

VERSION = "governor-embedded-0.1.0"


def build_app(settings: WorkerSettings) -> Starlette:
    """The application; the engine is loaded here and started with the application's lifespan."""
    worker = Worker(settings)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await worker.start()
        try:
            yield
        finally:
            await worker.stop()

    routes = [
        Route("/v1/chat/completions", chat_completions, methods=["POST"]),
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/models", models),
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/detokenize", detokenize, methods=["POST"]),
        Route("/health", health),
        Route("/version", version),
        Route("/metrics", metrics),
        Route("/governor/v1/info", info),
        Route("/governor/v1/signals", signals),
        Route("/governor/v1/control", control, methods=["POST"]),
    ]
    handlers = {ApiError: _api_error, HTTPException: _http_error, Exception: _internal_error}
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)  # type: ignore[arg-type]
    app.state.worker = worker
    return app


async def models(request: Request) -> Response:
    """GET /v1/models."""
    worker: Worker = request.app.state.worker
    card = {
        "id": worker.settings.served_model_name,
        "object": "model",
        "created": worker.created_s,
        "owned_by": "governor",
        "root": worker.settings.model.name,
        "parent": None,
        "max_model_len": worker.settings.context_tokens,
    }
    return json_response({"object": "list", "data": [card]})


async def tokenize(request: Request) -> Response:
    """POST /tokenize: `prompt`, or `messages` with the chat template."""
    worker: Worker = request.app.state.worker
    body = await read_body(request)
    worker.check_model(body)
    text = body.text("prompt")
    if text is None and body.get("messages") is None:
        raise bad_request("prompt or messages is needed", "prompt")
    ids = worker.prompts.chat(body) if text is None else worker.engine.vocabulary.encode(text)
    vocabulary = worker.engine.vocabulary
    strings = [vocabulary.token_string(i) for i in ids] if body.flag("return_token_strs") else None
    return json_response(
        {
            "count": len(ids),
            "max_model_len": worker.settings.context_tokens,
            "tokens": ids,
            "token_strs": strings,
        }
    )


async def detokenize(request: Request) -> Response:
    """POST /detokenize."""
    worker: Worker = request.app.state.worker
    body = await read_body(request)
    worker.check_model(body)
    ids = body.token_ids("tokens")
    if any(not 0 <= i < len(worker.engine.vocabulary) for i in ids):
        raise bad_request("tokens holds an id outside the vocabulary", "tokens")
    return json_response({"prompt": worker.engine.vocabulary.decode(ids)})


async def health(request: Request) -> Response:
    """GET /health: 200 while the engine's thread lives, else 503."""
    worker: Worker = request.app.state.worker
    return Response(status_code=200 if worker.engine.alive else 503)


async def version(request: Request) -> Response:
    """GET /version."""
    return json_response({"version": VERSION})


async def metrics(request: Request) -> Response:
    """GET /metrics in Prometheus text form."""
    worker: Worker = request.app.state.worker
    return Response(worker.engine.metrics.render(), media_type=CONTENT_TYPE_LATEST)


async def info(request: Request) -> Response:
    """GET /governor/v1/info."""
    worker: Worker = request.app.state.worker
    return json_response(worker.info())


async def signals(request: Request) -> Response:
    """GET /governor/v1/signals: endless NDJSON."""
    worker: Worker = request.app.state.worker
    return StreamResponse(worker.feed.lines(), "application/x-ndjson", _nothing)


async def control(request: Request) -> Response:
    """POST /governor/v1/control: 200 with a status; 400 only for a body that is no message."""
    worker: Worker = request.app.state.worker
    try:
        message = parse_control((await read_body(request)).whole)
    except ValueError as error:
        raise bad_request(str(error)) from error
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[ControlReply] = loop.create_future()

    def reply(result: ControlReply) -> None:
        loop.call_soon_threadsafe(_settle, answer, result)

    try:
        worker.engine.control(message, reply)
        return json_response((await asyncio.wait_for(answer, 5.0)).body())
    except (EngineDead, TimeoutError) as error:
        raise ApiError(503, "the engine does not answer") from error


def _settle(answer: "asyncio.Future[ControlReply]", result: ControlReply) -> None:
    if not answer.done():
        answer.set_result(result)


def _nothing() -> None:
    """A subscriber that leaves needs no clean-up beyond the end of its stream."""


async def _api_error(request: Request, error: ApiError) -> Response:
    return error_response(error)


async def _http_error(request: Request, error: HTTPException) -> Response:
    return error_response(ApiError(error.status_code, str(error.detail)))


async def _internal_error(request: Request, error: Exception) -> Response:
    return error_response(ApiError(500, f"internal error: {type(error).__name__}: {error}"))
