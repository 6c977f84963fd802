"""Paths that are not ours: relayed under admission as they came, never rewritten."""

import json
from typing import Any

from governor.core.demand import Demand
from governor.gateway.exchange import ClientExchange
from governor.gateway.wire import ParsedRequest
from governor.gateway.workers import Worker

# Hop-by-hop (RFC 9110 §7.6.1), what the gateway writes itself, and the client's credentials.
_DROPPED = frozenset(
    {
        "host",
        "connection",
        "content-length",
        "transfer-encoding",
        "keep-alive",
        "te",
        "trailer",
        "upgrade",
        "expect",
        "proxy-authorization",
        "proxy-connection",
        "authorization",
        "x-api-key",
        "api-key",
        "cookie",
    }
)
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


def other_request(
    exchange: ClientExchange, decision_id: str, tenant: str, now_us: int, any_model: str
) -> ParsedRequest:
    """A demand for a path that Governor does not know: its model and limit where the body says."""
    payload = _payload(exchange.body)
    model = payload.get("model")
    limits = [payload[name] for name in _LIMITS if type(payload.get(name)) is int]
    # Without a limit the path generates nothing that is known of (embeddings, tokenize, version).
    demand = Demand(
        decision_id=decision_id,
        tenant=tenant,
        model=model if isinstance(model, str) and model else any_model,
        arrived_us=now_us,
        prompt_tokens=max(1, len(exchange.body) // 4),
        stream=True,
        max_completion_tokens=max(1, min(limits, default=1)),
        thinks=False,
        landable=False,
    )
    return ParsedRequest(
        demand=demand,
        payload=payload,
        endpoint="other",
        wants_usage=True,
        wants_continuous_usage=True,
        wants_token_ids=True,
        wants_logprobs=True,
        wants_governor_block=False,
        notes=(),
    )


def _payload(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body) if body else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def other_body(exchange: ClientExchange, worker: Worker) -> bytes:
    """The client's request as it came, with the worker's credentials instead of the client's."""
    named = exchange.headers.get("connection", "").lower().split(",")
    dropped = _DROPPED | {name.strip() for name in named}
    kept = {
        name: value
        for name, value in exchange.headers.items()
        if name not in dropped and not name.startswith("x-governor-")
    }
    head = worker.request_head(exchange.method, exchange.target, len(exchange.body), kept)
    return head + exchange.body
