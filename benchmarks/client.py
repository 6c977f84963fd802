"""The load of a benchmark: one streamed chat read event by event, and many at a time."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from governor.core.units import kv_area

Result = TypeVar("Result")
EventSink = Callable[[dict[str, Any], float], None]
HeadSink = Callable[[Mapping[str, str]], None]

REASONING_FIELDS = ("reasoning", "reasoning_content")


@dataclass(slots=True)
class Reply:
    """What one streamed chat gave, with times in seconds from the request's start.

    `status` is 0 where no response head came. `error` is None only for a stream that ended with
    `[DONE]` and no error event. `ttft_s` is the first event with text or a token; `governor` the
    block that the gateway adds for a body with `"governor": {"explain": true}`.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    reasoning: str = ""
    content: str = ""
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    governor: dict[str, Any] | None = None
    token_ids: list[int] = field(default_factory=list)
    events: int = 0
    done: bool = False
    reasoning_after_content: bool = False
    ttft_s: float | None = None
    latency_s: float = 0.0
    error: str | None = None

    @property
    def decision_id(self) -> str | None:
        """Where Governor answered: `GET /v1/governor/decisions/{id}` explains the request."""
        return self.headers.get("x-governor-decision")

    @property
    def prompt_tokens(self) -> int | None:
        """From the usage event; None where there was none."""
        return None if self.usage is None else int(self.usage["prompt_tokens"])

    @property
    def completion_tokens(self) -> int | None:
        """Thinking, tags and answer, from the usage event."""
        return None if self.usage is None else int(self.usage["completion_tokens"])

    @property
    def thinking_tokens(self) -> int | None:
        """Thinking alone, from the usage event."""
        details = (self.usage or {}).get("completion_tokens_details") or {}
        tokens = details.get("reasoning_tokens")
        return None if tokens is None else int(tokens)

    @property
    def kv_area(self) -> int | None:
        """KV area of the request in token²; None without usage."""
        if self.prompt_tokens is None or self.completion_tokens is None:
            return None
        return kv_area(self.prompt_tokens, self.completion_tokens)

    @property
    def landed(self) -> str | None:
        """Why Governor ended the thinking, from its block; None where the model ended it."""
        return None if self.governor is None else self.governor.get("landed")

    def take(self, event: dict[str, Any], at_s: float) -> None:
        """Adds one decoded event of the stream."""
        self.events += 1
        if "error" in event:
            self.error = json.dumps(event["error"])
        if event.get("usage"):
            self.usage = event["usage"]
        if event.get("governor"):
            self.governor = event["governor"]
        for choice in event.get("choices") or ():
            self._take_choice(choice, at_s)

    def _take_choice(self, choice: dict[str, Any], at_s: float) -> None:
        delta = choice.get("delta") or {}
        thought = next((delta[name] for name in REASONING_FIELDS if delta.get(name)), "")
        text = delta.get("content") or ""
        ids = choice.get("token_ids") or ()
        # An answer is text that is not blank: newlines behind the end tag are no answer yet.
        if thought and self.content.strip():
            self.reasoning_after_content = True
        if self.ttft_s is None and (thought or text or ids):
            self.ttft_s = at_s
        self.reasoning += thought
        self.content += text
        self.token_ids += ids
        if choice.get("finish_reason"):
            self.finish_reason = choice["finish_reason"]


def http_client(timeout_s: float = 300.0) -> httpx.AsyncClient:
    """A client without a limit of connections and without proxies of the environment."""
    return httpx.AsyncClient(
        timeout=httpx.Timeout(timeout_s),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        trust_env=False,
    )


async def chat(
    client: httpx.AsyncClient,
    url: str,
    body: Mapping[str, Any],
    *,
    headers: Mapping[str, str] | None = None,
    on_head: HeadSink | None = None,
    on_event: EventSink | None = None,
) -> Reply:
    """Sends `body` to `url`/v1/chat/completions as a stream with usage and reads it to its end.

    `on_head` gets the headers of the response before its body, `on_event` each decoded event with
    its time. Failures are in `Reply.error`, not raised; what the two raise ends the request and
    goes to the caller.
    """
    reply = Reply()
    asked = {"stream_options": {"include_usage": True}, **body, "stream": True}
    start = time.perf_counter()
    try:
        path = f"{url}/v1/chat/completions"
        async with client.stream("POST", path, json=asked, headers=headers) as response:
            reply.status = response.status_code
            reply.headers = dict(response.headers)
            if on_head is not None:
                on_head(reply.headers)
            if response.status_code != 200:
                reply.error = (await response.aread()).decode("utf-8", "replace")
            else:
                await _read(response.aiter_bytes(), reply, start, on_event)
    except httpx.HTTPError as error:
        reply.error = f"{type(error).__name__}: {error}"
    reply.latency_s = time.perf_counter() - start
    return reply


async def _read(
    stream: AsyncIterator[bytes], reply: Reply, start: float, on_event: EventSink | None
) -> None:
    async for data in sse_data(stream):
        at_s = time.perf_counter() - start
        if data == b"[DONE]":
            reply.done = True
            continue
        event = json.loads(data)
        reply.take(event, at_s)
        if on_event is not None:
            on_event(event, at_s)
    if not reply.done and reply.error is None:
        reply.error = "the stream ended without [DONE]"


async def sse_data(stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of each server-sent event; comments and other fields are left out."""
    rest = b""
    data: list[bytes] = []
    async for piece in stream:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif not line and data:
                yield b"\n".join(data)
                data = []


async def run_all(
    jobs: Sequence[Callable[[], Awaitable[Result]]],
    concurrency: int,
    progress: Callable[[], None] | None = None,
) -> list[Result]:
    """Results in the order of the jobs, at most `concurrency` running; the first error ends all.

    `progress` is called after each. Raises ExceptionGroup with what a job raised.
    """
    gate = asyncio.Semaphore(concurrency)

    async def run(job: Callable[[], Awaitable[Result]]) -> Result:
        async with gate:
            result = await job()
        if progress is not None:
            progress()
        return result

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run(job)) for job in jobs]
    return [task.result() for task in tasks]
