"""Engine extras that can run code, steer routing or reach other tenants' state, and their removal.

They pass only where the tenant's policy names them (`allow_extras`).
"""

from collections.abc import Mapping
from typing import Any

# Member → the part of it that is about thinking, which always stays.
# Sources: request schemas of vLLM, SGLang, TensorRT-LLM and Dynamo.
EXTRAS: tuple[tuple[str, str | None], ...] = (
    # code, weights or templates of the client's own
    ("custom_logit_processor", None),
    ("logits_processors", None),
    ("custom_params", "thinking_budget"),
    ("lora_path", None),
    ("lora_request", None),
    ("chat_template", None),
    ("prompt_embeds", None),
    ("mm_processor_kwargs", None),
    ("media_io_kwargs", None),
    ("vllm_xargs", None),
    ("extra_args", None),
    # routing, scheduling and cache
    ("nvext", "max_thinking_tokens"),
    ("priority", None),
    ("cache_salt", None),
    ("extra_key", None),
    ("kv_transfer_params", None),
    ("ec_transfer_params", None),
    ("disaggregated_params", None),
    ("bootstrap_host", None),
    ("bootstrap_port", None),
    ("bootstrap_room", None),
    ("data_parallel_rank", None),
    ("session_id", None),
    ("session_params", None),
    # identities that the gateway itself gives
    ("request_id", None),
    ("rid", None),
    # more than text
    ("return_hidden_states", None),
)


def strip(
    body: Mapping[str, Any], allowed: tuple[str, ...]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A copy of `body` without extras that `allowed` does not name, and a note of what went."""
    made = dict(body)
    gone: list[str] = []
    for name, kept in EXTRAS:
        if name not in made or name in allowed:
            continue
        value = made.pop(name)
        rest = {}
        if kept is not None and isinstance(value, dict) and kept in value:
            rest = {kept: value[kept]}
            made[name] = rest
        if value is not None and value != rest:
            gone.append(name)
    notes = (f"removed, not allowed by policy: {', '.join(gone)}",) if gone else ()
    return made, notes
