"""The ASGI side of the port: health, metrics, models, decisions, operator's landing. FastAPI.

Completions never come here; the protocol takes them first.
"""

from collections.abc import AsyncIterator
from typing import Any, Protocol

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

# Paths that the ASGI application answers itself. All others are relayed to a worker.
LOCAL_PATHS = ("/healthz", "/readyz", "/metrics", "/v1/models", "/v1/governor")


class GatewayView(Protocol):
    """What the routes need of the gateway."""

    def readiness(self) -> tuple[bool, dict[str, Any]]:
        """Whether requests can be served, and the state of each part."""

    def metrics_text(self) -> bytes:
        """Prometheus exposition of this process."""

    def models(self) -> list[dict[str, Any]]:
        """Models of all joined workers, in OpenAI's form."""

    def capabilities(self) -> dict[str, Any]:
        """What each worker is known to be able to do."""

    def explain(self, decision_id: str, tenant: str) -> dict[str, Any] | None:
        """A decision's record and outcome; None for one that is not the tenant's."""

    def land(self, decision_id: str, tenant: str) -> str | None:
        """Ask a running request to land; None when it is not running."""

    def signals(self, decision_id: str, tenant: str) -> AsyncIterator[bytes] | None:
        """Signal rows of a running request as NDJSON; None when it does not run."""

    def tenant_of(self, headers: dict[str, str]) -> str | None:
        """The caller's tenant; None when its key is not accepted."""


def error(status: int, message: str, code: str) -> JSONResponse:
    """An OpenAI error body."""
    kind = "authentication_error" if status == 401 else "invalid_request_error"
    body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return JSONResponse(body, status_code=status)


def build_app(gateway: GatewayView) -> FastAPI:
    """The application around one gateway."""
    app = FastAPI(title="Governor", docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        ready, detail = gateway.readiness()
        return JSONResponse(detail, status_code=200 if ready else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(gateway.metrics_text(), media_type="text/plain; version=0.0.4")

    @app.get("/v1/models")
    async def models(request: Request) -> JSONResponse:
        if gateway.tenant_of(dict(request.headers)) is None:
            return error(401, "the API key is not accepted", "invalid_api_key")
        return JSONResponse({"object": "list", "data": gateway.models()})

    @app.get("/v1/models/{model:path}")
    async def model(model: str, request: Request) -> JSONResponse:
        if gateway.tenant_of(dict(request.headers)) is None:
            return error(401, "the API key is not accepted", "invalid_api_key")
        for found in gateway.models():
            if found["id"] == model:
                return JSONResponse(found)
        return error(404, f"the model {model!r} does not exist", "model_not_found")

    _add_governor_routes(app, gateway)
    return app


def _add_governor_routes(app: FastAPI, gateway: GatewayView) -> None:
    """Decisions and running requests: each tenant sees and lands its own, and no others."""

    @app.get("/v1/governor/capabilities")
    async def capabilities() -> dict[str, Any]:
        return gateway.capabilities()

    @app.get("/v1/governor/decisions/{decision_id}")
    async def decision(decision_id: str, request: Request) -> JSONResponse:
        tenant = gateway.tenant_of(dict(request.headers))
        if tenant is None:
            return error(401, "the API key is not accepted", "invalid_api_key")
        found = gateway.explain(decision_id, tenant)
        if found is None:
            return error(404, "no such decision is kept", "decision_not_found")
        return JSONResponse(found)

    @app.post("/v1/governor/requests/{decision_id}/land")
    async def land(decision_id: str, request: Request) -> JSONResponse:
        tenant = gateway.tenant_of(dict(request.headers))
        if tenant is None:
            return error(401, "the API key is not accepted", "invalid_api_key")
        state = gateway.land(decision_id, tenant)
        if state is None:
            return error(404, "no such request is running", "request_not_running")
        return JSONResponse({"decision_id": decision_id, "state": state}, status_code=202)

    @app.get("/v1/governor/requests/{decision_id}/signals")
    async def signals(decision_id: str, request: Request) -> Response:
        tenant = gateway.tenant_of(dict(request.headers))
        if tenant is None:
            return error(401, "the API key is not accepted", "invalid_api_key")
        lines = gateway.signals(decision_id, tenant)
        if lines is None:
            return error(404, "no such request is running", "request_not_running")
        return StreamingResponse(lines, media_type="application/x-ndjson")
