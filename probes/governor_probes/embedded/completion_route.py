"""POST /v1/completions: text or token-id prompts, streamed or whole. No reasoning split."""

import time
import uuid
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from governor_probes.embedded.api_error import ApiError, bad_request
from governor_probes.embedded.body_fields import Body
from governor_probes.embedded.engine_transformers import EngineDead
from governor_probes.embedded.generation import Generation
from governor_probes.embedded.generation_fields import (
    MAX_LOGPROBS,
    GenerationFields,
    read_generation,
)
from governor_probes.embedded.http_io import DONE, attempt_of, event, json_response, read_body
from governor_probes.embedded.output_shape import TokenTally, completion_logprobs, usage
from governor_probes.embedded.request import OutputBatch
from governor_probes.embedded.stream_response import StreamResponse
from governor_probes.embedded.whole_reply import collect
from governor_probes.embedded.worker import Worker

_DEFAULT_MAX_TOKENS = 16


class CompletionReply:
    """Shapes one completion request's output."""

    def __init__(self, worker: Worker, fields: GenerationFields, prompt: list[int]) -> None:
        self._vocabulary = worker.engine.vocabulary
        self._fields = fields
        self._prompt = prompt
        self.rid = fields.request_id or uuid.uuid4().hex
        self._base = {
            "id": f"cmpl-{self.rid}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": worker.settings.served_model_name,
        }
        self._tallies = [TokenTally() for _ in range(fields.choices)]
        self._lengths = [0] * fields.choices

    def choice(self, index: int, batch: OutputBatch) -> dict[str, Any]:
        """One batch as a stream choice."""
        tally = self._tallies[index]
        first = tally.completion == 0
        tally.add(batch.items)
        tally.cached = batch.cached_tokens
        text = "".join(item.text for item in batch.items)
        choice: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": completion_logprobs(batch.items, self._vocabulary, self._lengths[index]),
            "finish_reason": batch.finish_reason,
            "stop_reason": batch.stop_reason,
        }
        if self._fields.return_token_ids:
            choice["prompt_token_ids"] = self._prompt if first else None
            choice["token_ids"] = [i.token_id for i in batch.items if i.token_id is not None]
        self._lengths[index] += len(text)
        return choice

    def chunk(self, index: int, batch: OutputBatch) -> dict[str, Any]:
        """One batch as a stream chunk."""
        chunk = {**self._base, "choices": [self.choice(index, batch)]}
        if self._fields.continuous_usage:
            chunk["usage"] = usage(len(self._prompt), [self._tallies[index]])
        return chunk

    def usage_chunk(self) -> dict[str, Any]:
        """The chunk behind the last choice."""
        return {**self._base, "choices": [], "usage": usage(len(self._prompt), self._tallies)}

    def whole(self, parts: list[list[dict[str, Any]]]) -> dict[str, Any]:
        """A reply that is not streamed, from each choice's stream choices."""
        return {
            **self._base,
            "choices": [_join(choices) for choices in parts],
            "usage": usage(len(self._prompt), self._tallies),
        }


def _join(parts: list[dict[str, Any]]) -> dict[str, Any]:
    whole = {**parts[-1], "text": "".join(p["text"] for p in parts)}
    logprobs = [p["logprobs"] for p in parts if p["logprobs"]]
    if logprobs:
        whole["logprobs"] = {k: [v for p in logprobs for v in p[k]] for k in logprobs[0]}
    if "token_ids" in whole:
        whole["token_ids"] = [i for p in parts for i in p["token_ids"]]
        whole["prompt_token_ids"] = parts[0]["prompt_token_ids"]
    return whole


async def completions(request: Request) -> Response:
    """The route."""
    worker: Worker = request.app.state.worker
    body = await read_body(request)
    worker.check_model(body)
    if body.flag("echo"):
        raise bad_request("echo is not supported", "echo")
    prompt = _prompt(body, worker)
    worker.check_prompt(prompt)
    fields = read_generation(
        body,
        prompt_tokens=len(prompt),
        context_tokens=worker.settings.context_tokens,
        vocabulary_size=len(worker.engine.vocabulary),
        default_max_tokens=_DEFAULT_MAX_TOKENS,
        top_logprobs=body.integer("logprobs", None, 0, MAX_LOGPROBS),
        defaults=worker.sampling_defaults,
    )
    reply = CompletionReply(worker, fields, prompt)
    generation = worker.open(prompt, fields, reply.rid, attempt_of(request))
    if fields.stream:
        report = "x-governor-attempt" in request.headers
        stream = _stream(worker, generation, reply, fields, report=report)
        return StreamResponse(stream, "text/event-stream; charset=utf-8", generation.abort)
    parts: list[list[dict[str, Any]]] = [[] for _ in range(fields.choices)]
    async for index, batch in collect(worker, generation, request.receive):
        parts[index].append(reply.choice(index, batch))
    return json_response(reply.whole(parts))


async def _stream(
    worker: Worker,
    generation: Generation,
    reply: CompletionReply,
    fields: GenerationFields,
    *,
    report: bool,
) -> AsyncGenerator[bytes]:
    try:
        async for arrived in generation.batches():
            lines: list[bytes] = []
            for index, batch in arrived:
                if batch.error is not None:
                    yield b"".join(lines) + event(ApiError(500, batch.error).body()) + DONE
                    return
                lines.append(event(reply.chunk(index, batch)))
            yield b"".join(lines)
        if fields.usage:
            last = reply.usage_chunk()
            if report:
                last["governor_landing"] = generation.landing_report()
            yield event(last)
        yield DONE
    except EngineDead as error:
        yield event(ApiError(500, str(error)).body()) + DONE
    finally:
        worker.close(generation)


def _prompt(body: Body, worker: Worker) -> list[int]:
    """One prompt: a string, a list of ids, or a list that holds one of these."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return worker.engine.vocabulary.encode(prompt)
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        return Body({"prompt": prompt}).token_ids("prompt")
    raise bad_request("prompt must be one string or one list of token ids", "prompt")
