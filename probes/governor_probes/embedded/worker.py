"""One worker process: engine, prompt writer, signal feed and the requests being served."""

import asyncio
import time
import uuid
from typing import Any

from governor_probes.embedded.api_error import ApiError, bad_request
from governor_probes.embedded.body_fields import Body
from governor_probes.embedded.engine_transformers import EngineDead, Published, TransformersEngine
from governor_probes.embedded.generation import Generation
from governor_probes.embedded.generation_fields import GenerationFields, sampling_defaults
from governor_probes.embedded.prompts import PromptWriter
from governor_probes.embedded.settings import WorkerSettings
from governor_probes.embedded.signal_feed import SignalFeed

FEATURES = (
    "signals", "control", "land", "budget", "cut", "thinking_token_budget", "grace",
    "return_token_ids", "continue_final_message", "tokenize", "prefix_caching", "logprobs",
    "priority", "tool_calls",
)  # fmt: skip
_LIVENESS_S = 0.5


class Worker:
    """What the routes stand on. Lives on the event loop; the engine has its own thread."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self.epoch = uuid.uuid4().hex
        self.created_s = int(time.time())
        self.engine = TransformersEngine(settings, self._publish)
        self.prompts = PromptWriter(self.engine.vocabulary, self.engine.tags, settings)
        self.sampling_defaults = sampling_defaults(self.engine.default_sampling)
        self.feed = SignalFeed(self.epoch)
        self._live: set[Generation] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Starts the engine; output arrives on the running loop."""
        self._loop = asyncio.get_running_loop()
        self.engine.start()
        self._watch = asyncio.create_task(self._watch_engine())

    async def stop(self) -> None:
        """Stops the engine; running requests end with an error."""
        if self._watch is not None:
            self._watch.cancel()
        await asyncio.to_thread(self.engine.stop)
        for generation in self._live:
            generation.engine_died()

    def open(
        self, prompt_ids: list[int], fields: GenerationFields, rid: str, attempt: int
    ) -> Generation:
        """Starts a generation. Close it with `close` whatever happens.

        Raises:
            ApiError: 400 for a budget on a model that does not think, 503 when the engine is gone.
        """
        if fields.budget_tokens is not None and self.engine.tags is None:
            raise bad_request("the model does not think", "thinking_token_budget")
        generation = Generation(self.engine, self.prompts, prompt_ids, fields, rid, attempt)
        try:
            generation.start()
        except EngineDead as error:
            raise ApiError(503, str(error)) from error
        self._live.add(generation)
        return generation

    def close(self, generation: Generation) -> None:
        """Ends a generation; what still runs is aborted."""
        self._live.discard(generation)
        generation.abort()

    def check_model(self, body: Body) -> None:
        """Raises ApiError 404 for a model that is not served here; an absent name is accepted."""
        model = body.text("model")
        if model is not None and model != self.settings.served_model_name:
            raise ApiError(404, f"The model `{model}` does not exist.", "model")

    def check_prompt(self, prompt_ids: list[int]) -> None:
        """Raises ApiError 400 for an empty prompt or unknown token ids."""
        if not prompt_ids:
            raise bad_request("the prompt is empty", "prompt")
        size = len(self.engine.vocabulary)
        if any(not 0 <= i < size for i in prompt_ids):
            raise bad_request("the prompt holds a token id outside the vocabulary", "prompt")

    def info(self) -> dict[str, Any]:
        """The body of /governor/v1/info (contract governor.info/1)."""
        s, engine = self.settings, self.engine
        return {
            "schema": "governor.info/1",
            "worker_epoch": self.epoch,
            "model": s.served_model_name,
            "think_start_ids": list(engine.tags.start_ids) if engine.tags else [],
            "think_end_ids": list(engine.tags.end_ids) if engine.tags else [],
            "wrap_up_text": s.reasoning_end_str if engine.tags else "",
            "wrap_up_ids": list(engine.wrap_up.ids) if engine.wrap_up else [],
            "block_size": s.block_size,
            "num_blocks": s.num_blocks,
            "max_model_len": s.context_tokens,
            "max_num_seqs": s.max_num_seqs,
            "kv_bytes_per_token": engine.kv_bytes_per_token,
            "stream_interval": s.stream_interval,
            "signal_interval": s.signal_interval,
            "features": list(FEATURES),
        }

    def _publish(self, published: Published) -> None:
        """Called on the engine's thread: one hop to the loop for all output of a step."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._dispatch, published)

    def _dispatch(self, published: Published) -> None:
        out, rows = published
        for request, batch in out:
            request.deliver(batch)
        if rows:
            self.feed.publish(rows)

    async def _watch_engine(self) -> None:
        while self.engine.alive:
            await asyncio.sleep(_LIVENESS_S)
        for generation in self._live:
            generation.engine_died()
