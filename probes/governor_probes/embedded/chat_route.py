"""POST /v1/chat/completions: streamed and whole replies."""

import time
import uuid
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from governor_probes.embedded.api_error import ApiError, bad_request
from governor_probes.embedded.body_fields import Body
from governor_probes.embedded.chat_output import ChatChoice, ChatMessage
from governor_probes.embedded.engine_transformers import EngineDead
from governor_probes.embedded.generation import Generation
from governor_probes.embedded.generation_fields import (
    MAX_LOGPROBS,
    GenerationFields,
    read_generation,
)
from governor_probes.embedded.http_io import DONE, attempt_of, event, json_response, read_body
from governor_probes.embedded.output_shape import usage
from governor_probes.embedded.request import OutputBatch
from governor_probes.embedded.stream_response import StreamResponse
from governor_probes.embedded.whole_reply import collect
from governor_probes.embedded.worker import Worker


class ChatReply:
    """Shapes one request's output; `base` is what every chunk begins with."""

    def __init__(self, worker: Worker, body: Body, fields: GenerationFields, prompt: list[int]):
        self._fields = fields
        self._prompt = prompt
        self.rid = fields.request_id or uuid.uuid4().hex
        self._id = f"chatcmpl-{self.rid}"
        self._created = int(time.time())
        self._model = worker.settings.served_model_name
        parse, forced = _tools(body)
        self._choices = [
            ChatChoice(
                index,
                worker.engine.vocabulary,
                token_ids=fields.return_token_ids,
                parse_tools=parse,
                forced_tool=forced,
            )
            for index in range(fields.choices)
        ]

    def first_chunks(self) -> list[dict[str, Any]]:
        """The role chunks; the first one carries the prompt's ids where they are asked for."""
        chunks = [self._chunk(choice.first(), index) for index, choice in enumerate(self._choices)]
        chunks[0]["prompt_token_ids"] = self._prompt if self._fields.return_token_ids else None
        return chunks

    def chunks(self, index: int, batch: OutputBatch) -> list[dict[str, Any]]:
        """The chunks of one batch."""
        return [self._chunk(choice, index) for choice in self._choices[index].choices(batch)]

    def usage_chunk(self) -> dict[str, Any]:
        """The chunk behind the last choice."""
        return {**self._base("chat.completion.chunk"), "choices": [], "usage": self._usage()}

    def whole(self, messages: list[ChatMessage]) -> dict[str, Any]:
        """A reply that is not streamed."""
        return {
            **self._base("chat.completion"),
            "choices": [message.choice() for message in messages],
            "usage": self._usage(),
            "prompt_token_ids": self._prompt if self._fields.return_token_ids else None,
        }

    def message_choices(self, index: int, batch: OutputBatch) -> Iterator[dict[str, Any]]:
        """The stream choices of a batch, for gathering into a message."""
        return self._choices[index].choices(batch)

    def _base(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def _chunk(self, choice: dict[str, Any], index: int) -> dict[str, Any]:
        chunk = {**self._base("chat.completion.chunk"), "choices": [choice]}
        if self._fields.continuous_usage:
            chunk["usage"] = usage(len(self._prompt), [self._choices[index].tally])
        return chunk

    def _usage(self) -> dict[str, Any]:
        return usage(len(self._prompt), [c.tally for c in self._choices])


async def chat_completions(request: Request) -> Response:
    """The route."""
    worker: Worker = request.app.state.worker
    body = await read_body(request)
    worker.check_model(body)
    prompt = worker.prompts.chat(body)
    worker.check_prompt(prompt)
    fields = read_generation(
        body,
        prompt_tokens=len(prompt),
        context_tokens=worker.settings.context_tokens,
        vocabulary_size=len(worker.engine.vocabulary),
        default_max_tokens=None,
        top_logprobs=_top_logprobs(body),
        defaults=worker.sampling_defaults,
    )
    reply = ChatReply(worker, body, fields, prompt)
    generation = worker.open(prompt, fields, reply.rid, attempt_of(request))
    if fields.stream:
        report = "x-governor-attempt" in request.headers
        stream = _stream(worker, generation, reply, fields, report=report)
        return StreamResponse(stream, "text/event-stream; charset=utf-8", generation.abort)
    messages = [ChatMessage() for _ in range(fields.choices)]
    async for index, batch in collect(worker, generation, request.receive):
        for choice in reply.message_choices(index, batch):
            messages[index].add(choice)
    return json_response(reply.whole(messages))


async def _stream(
    worker: Worker,
    generation: Generation,
    reply: ChatReply,
    fields: GenerationFields,
    *,
    report: bool,
) -> AsyncGenerator[bytes]:
    try:
        yield b"".join(event(chunk) for chunk in reply.first_chunks())
        async for arrived in generation.batches():
            lines: list[bytes] = []
            for index, batch in arrived:
                if batch.error is not None:
                    yield b"".join(lines) + event(ApiError(500, batch.error).body()) + DONE
                    return
                lines += [event(chunk) for chunk in reply.chunks(index, batch)]
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


def _top_logprobs(body: Body) -> int | None:
    top = body.integer("top_logprobs", 0, 0, MAX_LOGPROBS) or 0
    if not body.flag("logprobs"):
        if top:
            raise bad_request("top_logprobs needs logprobs", "top_logprobs")
        return None
    return top


def _tools(body: Body) -> tuple[bool, str | None]:
    """Whether to parse tool calls, and the function that must be called."""
    tools = body.get("tools") or []
    names = []
    if not isinstance(tools, list):
        raise bad_request("tools must be a list", "tools")
    for i, tool in enumerate(tools):
        name = tool.get("function", {}).get("name") if isinstance(tool, dict) else None
        if not isinstance(name, str) or not name:
            raise bad_request(f"tools[{i}].function.name must be a non-empty string", "tools")
        names.append(name)
    choice = body.get("tool_choice")
    if choice in (None, "auto"):
        return bool(names), None
    if choice == "none":
        return False, None
    if not names:
        raise bad_request("tool_choice needs tools", "tool_choice")
    if choice == "required":
        return True, names[0]
    named = choice.get("function", {}).get("name") if isinstance(choice, dict) else None
    if named not in names:
        raise bad_request("tool_choice names no function of tools", "tool_choice")
    return True, named
