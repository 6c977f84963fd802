"""`python -m benchmarks.landing`: thinking is ended by force, and must leave an answer.

Each problem is left alone once, to know how long it thinks, and then landed before that by one of
three ways: the client's `thinking_token_budget`, the client's `governor.budget_tokens`, or an
operator's request in the middle of the stream; half of them at the end of a line, half in mid-line.
It runs against workers that put 1, 3 and 20 tokens in a chunk. The same problems without thinking
are the yardstick.
"""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from benchmarks.client import Reply, chat, http_client, run_all
from benchmarks.harness import GatewayPlan, Stack, WorkerPlan, policy
from benchmarks.landing_cases import (
    Case,
    Draft,
    Natural,
    Outcome,
    Path,
    case_of,
    drafts,
    first_candidate_line,
    thinking_tokens_of,
)
from benchmarks.landing_figures import figures, targets
from benchmarks.report import argument_parser, metadata, write_json
from governor.core.keys import KEY_PREFIX, hash_of_key
from governor_probes.tiny_reasoner.task import THINK_END, is_right

MODEL = "tiny-reasoner"
INTERVALS = (1, 3, 20)
CONCURRENCY = 16
# Long enough to see 2.5 times the first candidate of 12 items, and its natural end up to 9.
NATURAL_LIMIT_TOKENS = 320
# Of the drawn problems some are too short for their place, and some end before an operator acts.
SPARE_SHARE = 0.25
# Loops off: each landing here has the cause that the benchmark gives it.
POLICY = """
apiVersion: governor.dev/v1
defaults:
  budget: {default: 400, max: 1500}
  answer_reserve: 16
  loops: false
  landing: {unlanded_share: 0%}
  output: {governor_block: always}
tenants:
  line:
    keys: ["KEY_OF_LINE"]
    landing: {grace: 16}
  exact:
    keys: ["KEY_OF_EXACT"]
    landing: {grace: 0, grace_fraction: 0}
"""
TENANTS = ("line", "exact")


@dataclass(frozen=True, slots=True)
class Route:
    """Where one stream interval is served."""

    stream_interval: int
    worker_url: str
    gateway_url: str
    think_end_id: int


def key_of(tenant: str) -> str:
    """The key of a tenant of the benchmark's policy, of the form in which Governor issues keys."""
    return KEY_PREFIX + tenant.ljust(43, "0")


def headers_of(draft: Draft) -> dict[str, str]:
    """The key of the tenant whose policy has the draft's grace."""
    tenant = TENANTS[0] if draft.grace_tokens else TENANTS[1]
    return {"authorization": f"Bearer {key_of(tenant)}"}


def policy_text() -> str:
    """The policy with the hashes of its tenants' keys."""
    text = POLICY
    for tenant in TENANTS:
        text = text.replace(f"KEY_OF_{tenant.upper()}", hash_of_key(key_of(tenant)))
    return text


def body_of(draft: Draft, **fields: Any) -> dict[str, Any]:
    """The request of a problem."""
    return {"model": MODEL, "messages": draft.problem.messages, **fields}


async def tokens_in(client: httpx.AsyncClient, url: str, text: str) -> list[int]:
    """Token ids of a text, by the worker's own tokenizer."""
    asked = {"model": MODEL, "prompt": text, "add_special_tokens": False}
    reply = await client.post(f"{url}/tokenize", json=asked)
    reply.raise_for_status()
    return [int(token_id) for token_id in reply.json()["tokens"]]


async def natural_of(client: httpx.AsyncClient, url: str, draft: Draft) -> Natural | None:
    """The problem left alone, straight at a worker; None where no candidate came."""
    reply = await chat(client, url, body_of(draft, max_completion_tokens=NATURAL_LIMIT_TOKENS))
    if reply.error is not None or reply.thinking_tokens is None:
        raise RuntimeError(f"the worker did not answer {draft.problem.question}: {reply.error}")
    head = first_candidate_line(reply.reasoning)
    if head is None:
        return None
    position = len(await tokens_in(client, url, head))
    return Natural(reply.reasoning, reply.thinking_tokens, position)


async def land(client: httpx.AsyncClient, route: Route, case: Case, *, with_ids: bool) -> Outcome:
    """Sends one case and lands it."""
    fields: dict[str, Any] = {"return_token_ids": True} if with_ids else {}
    if case.draft.path is Path.CLIENT_BUDGET:
        fields["thinking_token_budget"] = case.at_tokens
    elif case.draft.path is Path.GOVERNOR_BUDGET:
        fields["governor"] = {"budget_tokens": case.at_tokens}
    body = body_of(case.draft, **fields)
    if case.draft.path is Path.OPERATOR:
        reply = await _operated(client, route, case, body)
    else:
        reply = await chat(client, route.gateway_url, body, headers=headers_of(case.draft))
    ids = thinking_tokens_of(reply.token_ids, route.think_end_id) if with_ids else None
    return Outcome(
        case=case,
        stream_interval=route.stream_interval,
        landed=reply.landed,
        thinking=reply.reasoning,
        content=reply.content,
        thinking_tokens=reply.thinking_tokens,
        counted_tokens=ids,
        granted_tokens=(reply.governor or {}).get("granted_tokens"),
        reasoning_after_content=reply.reasoning_after_content,
        error=reply.error,
    )


async def _operated(
    client: httpx.AsyncClient, route: Route, case: Case, body: Mapping[str, Any]
) -> Reply:
    """Reads the stream and, after the case's number of reasoning deltas, lands it from outside."""
    wanted, seen = case.deltas(route.stream_interval), 0
    decision_id, key = "", headers_of(case.draft)
    landing: asyncio.Task[httpx.Response] | None = None

    def on_head(headers: Mapping[str, str]) -> None:
        nonlocal decision_id
        decision_id = headers.get("x-governor-decision", "")

    def on_event(event: dict[str, Any], _at_s: float) -> None:
        nonlocal seen, landing
        choices = event.get("choices") or ()
        seen += any((choice.get("delta") or {}).get("reasoning") for choice in choices)
        if seen >= wanted and landing is None:
            path = f"{route.gateway_url}/v1/governor/requests/{decision_id}/land"
            landing = asyncio.get_running_loop().create_task(client.post(path, headers=key))

    reply = await chat(
        client,
        route.gateway_url,
        body,
        headers=key,
        on_head=on_head,
        on_event=on_event,
    )
    if landing is not None:
        answered = await landing
        # 404: the request had ended already, which `Outcome.forced` sees by its thinking.
        if answered.status_code not in (202, 404):
            reply.error = reply.error or f"land: {answered.status_code} {answered.text}"
    return reply


async def without_thinking(client: httpx.AsyncClient, route: Route, draft: Draft) -> bool:
    """Whether the problem comes right when the model answers at once."""
    body = body_of(draft, reasoning_effort="none")
    reply = await chat(client, route.gateway_url, body, headers=headers_of(draft))
    if reply.error is not None or reply.thinking_tokens:
        raise RuntimeError(f"thinking was not off: {reply.error} {reply.reasoning!r}")
    return is_right(draft.problem, reply.content)


async def force(
    client: httpx.AsyncClient, route: Route, cases: Sequence[Case], count: int
) -> list[Outcome]:
    """`count` forced landings, with the cases in between in which thinking was faster."""
    outcomes: list[Outcome] = []
    left = list(cases)
    while left and (missing := count - sum(outcome.forced for outcome in outcomes)) > 0:
        now, left = left[:missing], left[missing:]
        start = len(outcomes)
        jobs = [
            lambda case=case, at=at: land(client, route, case, with_ids=at % 2 == 0)
            for at, case in enumerate(now, start)
        ]
        outcomes += await run_all(jobs, CONCURRENCY)
    return outcomes


async def measure(
    count: int, seed: int, intervals: Sequence[int]
) -> tuple[list[Outcome], dict[str, bool]]:
    """All outcomes, and by question whether it came right without thinking."""
    names = [str(interval) for interval in intervals]
    workers = [WorkerPlan(name, {"stream_interval": name}) for name in names]
    terms = policy(policy_text())
    gateways = [GatewayPlan(f"gateway-{name}", (name,), terms) for name in names]
    async with Stack(workers, gateways) as stack, http_client() as client:
        end_ids = await tokens_in(client, stack.url(names[0]), THINK_END)
        if len(end_ids) != 1:
            raise RuntimeError(f"{THINK_END} is not one token: {end_ids}")
        routes = [
            Route(int(name), stack.url(name), stack.url(f"gateway-{name}"), end_ids[0])
            for name in names
        ]
        # Several tokens per chunk where a chain only needs to be long.
        cases = await _cases(client, routes[-1], count, seed)
        outcomes: list[Outcome] = []
        for route in routes:
            found = await force(client, route, cases, count)
            outcomes += found
            done = sum(outcome.forced for outcome in found)
            print(f"interval {route.stream_interval}: {done} forced landings", file=sys.stderr)
        used = {outcome.case.problem.question: outcome.case.draft for outcome in outcomes}
        jobs = [lambda d=draft: without_thinking(client, routes[0], d) for draft in used.values()]
        answers = await run_all(jobs, CONCURRENCY)
    return outcomes, dict(zip(used, answers, strict=True))


async def _cases(client: httpx.AsyncClient, route: Route, count: int, seed: int) -> list[Case]:
    drawn = drafts(int(count * (1 + SPARE_SHARE)) + 3, seed)
    jobs = [lambda d=draft: natural_of(client, route.worker_url, d) for draft in drawn]
    naturals = await run_all(jobs, CONCURRENCY)
    found = [
        case_of(draft, natural)
        for draft, natural in zip(drawn, naturals, strict=True)
        if natural is not None
    ]
    return [case for case in found if case is not None]


def main() -> None:
    """Command line."""
    parser = argument_parser("benchmarks.landing", str(__doc__).splitlines()[0])
    parser.add_argument("--count", type=int, help="forced landings per stream interval (200)")
    options = parser.parse_args()
    count = options.count or (27 if options.quick else 200)
    outcomes: list[Outcome] = []
    without: dict[str, bool] = {}
    for turn in range(options.rounds):
        found, answers = asyncio.run(measure(count, options.seed + turn, INTERVALS))
        outcomes += found
        without |= answers
    result = figures(outcomes, lambda o: without[o.case.problem.question], options.seed)
    for text, met in targets(result):
        print(f"{'met   ' if met else 'MISSED'}  {text}", file=sys.stderr)
    for outcome in outcomes:
        if outcome.forced and not _fine(outcome):
            print(f"look at: {outcome}", file=sys.stderr)
    if options.json:
        write_json(options.json, result, metadata(options.seed, quick=options.quick))
    if options.plot:
        from benchmarks.landing_plot import plot

        plot(options.plot, outcomes, result)


def _fine(outcome: Outcome) -> bool:
    faults = outcome.empty, outcome.resumed_thinking, outcome.cap_exceeded, outcome.error
    return outcome.confirmed and not any(faults)


if __name__ == "__main__":
    main()
