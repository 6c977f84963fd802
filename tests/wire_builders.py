"""Requests as clients send them, parsed under a policy. Used by the tests of the wire."""

import json
from typing import Any

from governor.core.policy import TenantPolicy
from governor.gateway.wire import ParsedRequest, parse

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
NOW_US = 5_000_000
HELLO = [{"role": "user", "content": "hello"}]


def parse_bytes(
    body: bytes,
    path: str = CHAT,
    policy: TenantPolicy | None = None,
    headers: dict[str, str] | None = None,
) -> ParsedRequest:
    return parse(
        path,
        body,
        headers or {},
        decision_id="d-1",
        policy=policy or TenantPolicy(),
        now_us=NOW_US,
        prompt_tokens_estimate=lambda model, text_bytes: text_bytes,
        thinks=lambda model: model != "plain",
    )


def chat(
    policy: TenantPolicy | None = None, headers: dict[str, str] | None = None, **members: Any
) -> ParsedRequest:
    body = {"model": "m", "messages": HELLO, **members}
    return parse_bytes(json.dumps(body).encode(), CHAT, policy, headers)


def completions(**members: Any) -> ParsedRequest:
    return parse_bytes(
        json.dumps({"model": "m", "prompt": "hello", **members}).encode(), COMPLETIONS
    )


def nested(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    for key in reversed(path):
        value = {key: value}
    return dict(value)
