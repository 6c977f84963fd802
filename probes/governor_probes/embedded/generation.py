"""Carries the output of one HTTP request's choices from the engine's thread to its handler."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from governor_probes.embedded.engine_transformers import EngineDead, TransformersEngine, request_rng
from governor_probes.embedded.generation_fields import GenerationFields
from governor_probes.embedded.prompts import PromptWriter
from governor_probes.embedded.request import EngineRequest, OutputBatch
from governor_probes.embedded.stop_text import StopText
from governor_probes.embedded.vocabulary import TextDecoder
from governor_probes.landing_state import LandingState

Receive = Callable[[], Awaitable[Any]]


class Generation:
    """All choices of one request. Use `batches` once; `abort` is safe at any time."""

    def __init__(
        self,
        engine: TransformersEngine,
        prompts: PromptWriter,
        prompt_ids: list[int],
        fields: GenerationFields,
        rid: str,
        attempt: int,
    ) -> None:
        self._engine = engine
        self._arrived: list[tuple[int, OutputBatch]] = []
        self._wake = asyncio.Event()
        self._left = fields.choices
        self.prompt_ids = prompt_ids
        self.rid = rid
        self._gone = False
        self._dead = False
        self._requests = [
            self._request(prompts, fields, attempt, index) for index in range(fields.choices)
        ]

    def _request(
        self, prompts: PromptWriter, fields: GenerationFields, attempt: int, index: int
    ) -> EngineRequest:
        engine, sampling = self._engine, fields.sampling
        landing = LandingState(
            engine.tags,
            engine.wrap_up,
            thinking_open=prompts.thinking_open(self.prompt_ids),
            at_line_start=prompts.ends_line(self.prompt_ids),
        )
        if fields.budget_tokens is not None:
            landing.set_budget(fields.budget_tokens, fields.grace_tokens)
        return EngineRequest(
            key=uuid.uuid4().hex,
            rid=self.rid if index == 0 else f"{self.rid}#{index}",
            attempt=attempt,
            prompt_ids=self.prompt_ids,
            sampling=sampling,
            landing=landing,
            decoder=TextDecoder(engine.vocabulary),
            stop=StopText(sampling.stop, sampling.include_stop),
            rng=request_rng(engine.settings, sampling.seed, index),
            deliver=lambda batch: self._deliver(index, batch),
            arrival_s=time.monotonic(),
            priority=fields.priority,
            think_end_id=engine.tags.end_ids[0] if engine.tags else None,
        )

    def start(self) -> None:
        """Submits all choices.

        Raises:
            EngineDead: the engine's thread is gone.
        """
        for request in self._requests:
            self._engine.submit(request)

    def abort(self) -> None:
        """Drops what is still running; its blocks are freed before the engine's next step."""
        if self._left:
            self._gone = True
            for request in self._requests:
                self._engine.abort(request.key)
            self._wake.set()

    @property
    def gone(self) -> bool:
        """True when the choices were aborted before they had all ended."""
        return self._gone

    def engine_died(self) -> None:
        """Called when the engine's thread is found dead; `batches` then raises."""
        self._dead = True
        self._wake.set()

    def landing_report(self) -> dict[str, object]:
        """How the first choice's thinking ended, for the stream's last chunk (contract a)."""
        landing = self._requests[0].landing
        by = landing.landed_by
        return {"landed_by": None if by is None else by.value}

    async def batches(self) -> AsyncIterator[list[tuple[int, OutputBatch]]]:
        """Yields what has arrived as (choice, batch) lists until every choice has ended.

        Raises:
            EngineDead: the engine's thread has died.
        """
        while self._left and not self._gone:
            if not self._arrived:
                if self._dead:
                    raise EngineDead("the engine stopped while the request was running")
                self._wake.clear()
                await self._wake.wait()
            arrived, self._arrived = self._arrived, []
            self._left -= sum(1 for _, b in arrived if b.finish_reason is not None)
            if arrived:
                yield arrived

    async def watch(self, receive: Receive) -> None:
        """Aborts when the client goes away. Run as a task beside the reply."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.abort()

    def _deliver(self, index: int, batch: OutputBatch) -> None:
        self._arrived.append((index, batch))
        self._wake.set()
