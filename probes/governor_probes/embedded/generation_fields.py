"""The fields that chat and completions share: sampling, budget, streaming options."""

from dataclasses import dataclass
from typing import Any

from governor_probes.embedded.api_error import bad_request
from governor_probes.embedded.body_fields import Body
from governor_probes.embedded.request import Sampling

MAX_LOGPROBS = 20
MAX_CHOICES = 8


@dataclass(frozen=True, slots=True)
class GenerationFields:
    """What a body asks of the engine and of the answer's shape.

    `budget_tokens` None is unlimited. `usage` and `continuous_usage` concern streams only.
    """

    sampling: Sampling
    choices: int
    budget_tokens: int | None
    grace_tokens: int
    stream: bool
    usage: bool
    continuous_usage: bool
    return_token_ids: bool
    priority: int
    request_id: str | None


def sampling_defaults(generation_config: Any) -> tuple[float, float, int]:
    """Temperature, top_p and top_k of a model: greedy unless its configuration samples."""
    if not getattr(generation_config, "do_sample", False):
        return 0.0, 1.0, 0
    temperature = generation_config.temperature
    return (
        1.0 if temperature is None else float(temperature),
        float(generation_config.top_p or 1.0),
        int(generation_config.top_k or 0),
    )


def read_generation(
    body: Body,
    *,
    prompt_tokens: int,
    context_tokens: int,
    vocabulary_size: int,
    default_max_tokens: int | None,
    top_logprobs: int | None,
    defaults: tuple[float, float, int],
) -> GenerationFields:
    """Reads and checks the shared fields.

    Raises:
        ApiError: 400, naming the field.
    """
    max_tokens = _max_tokens(body, prompt_tokens, context_tokens, default_max_tokens)
    stop_ids = body.token_ids("stop_token_ids")
    if any(not 0 <= i < vocabulary_size for i in stop_ids):
        raise bad_request("stop_token_ids holds an id outside the vocabulary", "stop_token_ids")
    top_k = body.integer("top_k", defaults[2], -1) or 0
    top_p = body.number("top_p", defaults[1], 0.0, 1.0)
    if top_p == 0.0:
        raise bad_request("top_p must be above 0", "top_p")
    sampling = Sampling(
        max_tokens=max_tokens,
        temperature=body.number("temperature", defaults[0], 0.0, 2.0),
        top_p=top_p,
        top_k=max(0, top_k),
        seed=body.integer("seed"),
        stop=body.strings("stop"),
        stop_token_ids=frozenset(stop_ids),
        include_stop=body.flag("include_stop_str_in_output"),
        ignore_eos=body.flag("ignore_eos"),
        min_tokens=body.integer("min_tokens", 0, 0, max_tokens) or 0,
        presence_penalty=body.number("presence_penalty", 0.0, -2.0, 2.0),
        frequency_penalty=body.number("frequency_penalty", 0.0, -2.0, 2.0),
        top_logprobs=top_logprobs,
    )
    stream = body.flag("stream")
    options = Body(body.table("stream_options"))
    if not stream and body.get("stream_options") is not None:
        raise bad_request("stream_options needs stream", "stream_options")
    usage = options.flag("include_usage")
    return GenerationFields(
        sampling=sampling,
        choices=body.integer("n", 1, 1, MAX_CHOICES) or 1,
        budget_tokens=_budget(body),
        grace_tokens=Body(body.table("vllm_xargs")).integer("governor_grace_tokens", 0, 0) or 0,
        stream=stream,
        usage=usage,
        continuous_usage=usage and options.flag("continuous_usage_stats"),
        return_token_ids=body.flag("return_token_ids"),
        priority=body.integer("priority", 0) or 0,
        request_id=body.text("request_id"),
    )


def _budget(body: Body) -> int | None:
    budget = body.integer("thinking_token_budget", None, -1)
    return None if budget is None or budget < 0 else budget


def _max_tokens(body: Body, prompt_tokens: int, context_tokens: int, default: int | None) -> int:
    room = context_tokens - prompt_tokens
    if room < 1:
        raise bad_request(
            f"This model's maximum context length is {context_tokens} tokens. However, your "
            f"request has {prompt_tokens} input tokens. Please reduce the length of the input.",
            "messages",
        )
    asked = body.integer("max_completion_tokens", None, 1)
    asked = body.integer("max_tokens", default, 1) if asked is None else asked
    if asked is None:
        return room
    if asked > room and asked is not default:
        raise bad_request(
            f"'max_tokens' or 'max_completion_tokens' is too large: {asked}. This model's maximum "
            f"context length is {context_tokens} tokens and your request has {prompt_tokens} "
            f"input tokens ({asked} > {context_tokens} - {prompt_tokens}).",
            "max_tokens",
        )
    return min(asked, room)
