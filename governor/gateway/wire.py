"""The client's request in, the worker's request out: one parse and one rewrite of the JSON body.

Any dialect becomes one `Demand`; what goes upstream carries the grant on the path that the worker
has. No HTTP codes, no clock, no decision about budgets.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from governor.core.budget import BudgetGrant
from governor.core.demand import Demand
from governor.core.errors import RequestInvalid
from governor.core.outcomes import GrantReason, LandingPath, Priority
from governor.core.policy import GovernorBlock, TenantPolicy
from governor.core.units import us_from_s
from governor.gateway import dialects, extras, fields
from governor.gateway.dialects import TEMPLATE
from governor.gateway.fields import MOST_SECONDS
from governor.gateway.prompts import Prompt, read_prompt

ENDPOINTS = {"/v1/chat/completions": "chat", "/v1/completions": "completions"}
DEADLINE_HEADER = "x-governor-deadline-ms"
PRIORITY_HEADER = "x-governor-priority"
# OpenAI's own bound on choices of one request.
MOST_CHOICES = 128
# Deeper bodies could be decoded but not encoded again: both recurse on the interpreter's stack.
MOST_DEPTH = 100
_STRUCTURED = (
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "json_schema",
    "regex",
    "ebnf",
)


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """One request as understood. `payload` is the client's body without what is never forwarded.

    `endpoint` is "chat" or "completions". `wants_*` say what the client itself asked to see;
    `notes` what was changed or ignored, in words of ours only (they become a header).
    `switched_on` is true where the client explicitly switched thinking on.
    """

    demand: Demand
    payload: dict[str, Any]
    endpoint: str
    wants_usage: bool
    wants_continuous_usage: bool
    wants_token_ids: bool
    wants_logprobs: bool
    wants_governor_block: bool
    notes: tuple[str, ...] = ()
    switched_on: bool = False


def parse(
    path: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    decision_id: str,
    policy: TenantPolicy,
    now_us: int,
    prompt_tokens_estimate: Callable[[str, int], int],
    thinks: Callable[[str], bool],
) -> ParsedRequest:
    """Understand one request; header names are lower-case.

    `prompt_tokens_estimate(model, bytes)` guesses prompt tokens, `thinks(model)` says whether the
    model is known to think. Raises RequestInvalid, and nothing else, for whatever a client sends.
    """
    endpoint = _endpoint(path)
    sent = _decode(body)
    model = _model(sent)
    prompt = read_prompt(sent, endpoint)
    said = dialects.read(sent)
    payload, extra_notes = extras.strip(sent, policy.allow_extras)
    fields.table(payload, ("vllm_xargs",))  # where it is allowed, ours joins it
    payload.pop("governor", None)
    limit, limit_notes = _completion_limit(sent, endpoint)
    priority, priority_notes = _priority(headers, policy)
    choices = (fields.integer(sent, ("n",), 1, MOST_CHOICES) or 1) * prompt.count
    stream = bool(fields.flag(sent, ("stream",)))
    usage, continuous = _usage(sent, stream)
    demand = Demand(
        decision_id=decision_id,
        tenant=policy.tenant,
        model=model,
        arrived_us=now_us,
        prompt_tokens=_prompt_tokens(model, prompt, prompt_tokens_estimate),
        prompt_tokens_exact=prompt.tokens is not None,
        stream=stream,
        max_completion_tokens=limit,
        ask=said.ask,
        priority=priority,
        deadline_us=_deadline_us(sent, headers, now_us),
        n=choices,
        tools=bool(sent.get("tools") or sent.get("functions")),
        structured=_structured(sent),
        temperature=fields.number(sent, ("temperature",), 0.0, 100.0),
        thinks=endpoint == "chat" and said.ask.budget_tokens != 0 and thinks(model),
        landable=choices == 1,
    )
    return ParsedRequest(
        demand=demand,
        payload=payload,
        endpoint=endpoint,
        wants_usage=usage,
        wants_continuous_usage=continuous,
        wants_token_ids=bool(fields.flag(sent, ("return_token_ids",))),
        wants_logprobs=_logprobs(sent, endpoint),
        wants_governor_block=_wants_block(sent, policy),
        notes=said.notes + limit_notes + priority_notes + extra_notes,
        switched_on=said.switched is True,
    )


def asked_priority(headers: Mapping[str, str]) -> Priority | None:
    """The band that the client names, None for none. Raises RequestInvalid for another word."""
    word = headers.get(PRIORITY_HEADER)
    if word is None:
        return None
    try:
        return Priority[word.strip().upper()]
    except KeyError:
        names = ", ".join(band.name.lower() for band in Priority)
        message = f"{PRIORITY_HEADER} must be one of {names}"
        raise RequestInvalid(message, PRIORITY_HEADER) from None


def upstream_body(
    parsed: ParsedRequest,
    grant: BudgetGrant | None,
    *,
    features: frozenset[str],
    rid: str,
    budget_path: LandingPath,
    asks_token_ids: bool,
    governed: bool,
) -> bytes:
    """The JSON body for the worker of one attempt.

    Where a grant binds, the dialects' members give way to the worker's own; elsewhere (not
    governed, a request that no grant can bind, raw completions) they stay as they came.
    """
    body = dict(parsed.payload)
    binds = grant is not None and grant.reason is not GrantReason.NOT_GOVERNED
    if governed and grant is not None and binds and parsed.endpoint == "chat":
        body = _with_grant(parsed, grant, features, budget_path)
    body["request_id"] = rid
    if parsed.demand.n == 1:
        # The stream is what is watched and landed; the gateway makes one answer of it for clients
        # that do not stream.
        body["stream"] = True
    if body.get("stream"):
        body["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
    if asks_token_ids:
        body["return_token_ids"] = True
    return msgspec.json.encode(body)


def _with_grant(
    parsed: ParsedRequest, grant: BudgetGrant, features: frozenset[str], path: LandingPath
) -> dict[str, Any]:
    """The payload with the grant in place of the client's own words on thinking."""
    body = dialects.without_thinking(parsed.payload)
    template = dict(body.get(TEMPLATE) or {})
    if template.get("reasoning_effort") == "none":
        del template["reasoning_effort"]
    effort = parsed.demand.ask.effort
    if effort is not None and effort not in ("none", template.get("reasoning_effort")):
        body["reasoning_effort"] = effort
    _set_switch(template, parsed, on=not grant.thinking_off)
    if template:
        body[TEMPLATE] = template
    else:
        body.pop(TEMPLATE, None)
    if grant.thinking_off:
        if "thinking_token_budget" in features:
            body["thinking_token_budget"] = 0
    elif path is LandingPath.NATIVE:
        _set_budget(body, grant, features)
    elif path is LandingPath.NONE:
        dialects.with_own_budgets(body, parsed.payload, grant.engine_budget_tokens)
    return body


def _set_switch(template: dict[str, Any], parsed: ParsedRequest, *, on: bool) -> None:
    """Thinking on or off by the template. On only where the client switched it on: the default of
    a template that thinks only on request is otherwise kept."""
    before = parsed.payload.get(TEMPLATE) or {}
    if not on:
        template["enable_thinking"] = False
        if "thinking" in before:
            template["thinking"] = False
        return
    kept = [name for name in ("enable_thinking", "thinking") if before.get(name) is True]
    if not kept and parsed.switched_on:
        kept = ["enable_thinking"]
    template.update(dict.fromkeys(kept, True))


def _set_budget(body: dict[str, Any], grant: BudgetGrant, features: frozenset[str]) -> None:
    """The budget in the engine's own member; grace too, where the worker looks for a boundary.

    A worker with grace ends thinking at the first boundary of the last `grace_tokens` of the
    budget; for cap and proven that lies inside N, for hint in (N, N + grace].
    """
    tokens = grant.engine_budget_tokens
    if "grace" in features and grant.grace_tokens > 0:
        tokens = grant.natural_tokens
        own = {"governor_grace_tokens": grant.grace_tokens}
        body["vllm_xargs"] = {**(body.get("vllm_xargs") or {}), **own}
    if tokens is not None:
        body["thinking_token_budget"] = tokens


def _endpoint(path: str) -> str:
    endpoint = ENDPOINTS.get(path)
    if endpoint is None:
        raise RequestInvalid(f"no completion route at {path}", code="not_found")
    return endpoint


def _model(sent: dict[str, Any]) -> str:
    model = fields.text(sent, ("model",))
    if model is None:
        raise RequestInvalid("model is required", "model")
    return model


def _decode(body: bytes) -> dict[str, Any]:
    try:
        sent = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, ValueError):
        raise RequestInvalid("the body is not JSON", code="invalid_json") from None
    if not isinstance(sent, dict):
        raise RequestInvalid("the body must be a JSON object")
    if body.count(b"{") + body.count(b"[") > MOST_DEPTH:
        _check_depth(sent)
    return sent


def _check_depth(sent: dict[str, Any]) -> None:
    level: list[Any] = [sent]
    for _ in range(MOST_DEPTH):
        inner: list[Any] = []
        for holder in level:
            members = holder.values() if isinstance(holder, dict) else holder
            inner += [member for member in members if isinstance(member, dict | list)]
        if not inner:
            return
        level = inner
    raise RequestInvalid(f"the body is nested more than {MOST_DEPTH} deep")


def _prompt_tokens(model: str, prompt: Prompt, estimate: Callable[[str, int], int]) -> int:
    if prompt.tokens is not None:
        return prompt.tokens
    return estimate(model, prompt.text_bytes)


def _completion_limit(sent: dict[str, Any], endpoint: str) -> tuple[int | None, tuple[str, ...]]:
    """The client's limit on output. Only chat knows `max_completion_tokens`."""
    older = fields.integer(sent, ("max_tokens",), 0)
    limit = fields.integer(sent, ("max_completion_tokens",), 1)
    if endpoint != "chat" or limit is None:
        return older, ()
    if older is not None:
        return limit, ("max_tokens is ignored: max_completion_tokens applies",)
    return limit, ()


def _priority(headers: Mapping[str, str], policy: TenantPolicy) -> tuple[Priority, tuple[str, ...]]:
    asked = asked_priority(headers)
    if asked is None:
        return policy.priority, ()
    if asked < policy.priority:
        return policy.priority, (f"{PRIORITY_HEADER} is ignored: policy does not allow it",)
    return asked, ()


def _deadline_us(sent: dict[str, Any], headers: Mapping[str, str], now_us: int) -> int | None:
    """The earlier of the body's and the header's deadline."""
    moments: list[int] = []
    seconds = fields.number(sent, ("governor", "deadline_s"), 0.0, MOST_SECONDS)
    if seconds is not None:
        moments.append(now_us + us_from_s(seconds))
    word = headers.get(DEADLINE_HEADER)
    if word is not None:
        digits = word.strip()
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 9):
            message = f"{DEADLINE_HEADER} must be whole milliseconds, at most {MOST_SECONDS} s"
            raise RequestInvalid(message, DEADLINE_HEADER)
        given = {DEADLINE_HEADER: int(digits)}
        millis = fields.integer(given, (DEADLINE_HEADER,), 0, MOST_SECONDS * 1000) or 0
        moments.append(now_us + millis * 1000)
    return min(moments, default=None)


def _usage(sent: dict[str, Any], stream: bool) -> tuple[bool, bool]:
    """Whether the client wants usage at the end, and on every chunk."""
    options = fields.table(sent, ("stream_options",))
    if options is not None and not stream:
        raise RequestInvalid("stream_options needs stream: true", "stream_options")
    usage = bool(fields.flag(sent, ("stream_options", "include_usage")))
    continuous = bool(fields.flag(sent, ("stream_options", "continuous_usage_stats")))
    return usage or not stream, usage and continuous


def _structured(sent: dict[str, Any]) -> bool:
    kind = fields.text(sent, ("response_format", "type"))
    return kind not in (None, "text") or any(sent.get(name) is not None for name in _STRUCTURED)


def _logprobs(sent: dict[str, Any], endpoint: str) -> bool:
    """Chat says yes or no, completions how many."""
    if endpoint == "chat":
        return bool(fields.flag(sent, ("logprobs",)))
    return fields.integer(sent, ("logprobs",), -1) is not None


def _wants_block(sent: dict[str, Any], policy: TenantPolicy) -> bool:
    explain = bool(fields.flag(sent, ("governor", "explain")))
    if policy.governor_block is GovernorBlock.ON_REQUEST:
        return explain
    return policy.governor_block is GovernorBlock.ALWAYS
