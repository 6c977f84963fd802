"""KV-cache bytes of a model from the dict of its `config.json`: per token, window and sequence.

Computes what one tensor-parallel rank stores. It is a prediction to check against the blocks that
the worker reports; it reads no file and knows no model by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from governor.core.errors import GovernorError

_DTYPE_BYTES: tuple[tuple[str, int], ...] = (
    *(("float32", 4), ("float", 4), ("bfloat16", 2), ("float16", 2), ("half", 2)),
    *(("fp8", 1), ("fp8_e4m3", 1), ("fp8_e5m2", 1), ("int8", 1)),
    *(("fp8_per_token_head", 1), ("int8_per_token_head", 1)),
)
# One fp32 scale per token, head and side (K, V).
_SCALE_BYTES = 4
# vLLM's `fp8_ds_mla`: 512 B of fp8 latent, 16 B of scales, 128 B of bf16 rope per token and layer.
_FP8_DS_MLA_BYTES = 656
# The sparse-attention indexer keeps fp8 keys with one fp32 scale for each 128 of them.
_INDEX_SCALE_GROUP = 128

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
_HIDDEN = ("hidden_size", "n_embd", "d_model")

_LAYER_KINDS: tuple[tuple[str, str], ...] = (
    *(("full_attention", "full"), ("attention", "full"), ("sliding_attention", "window")),
    *(("chunked_attention", "chunk"), ("linear_attention", "delta"), ("mamba", "mamba")),
    *(("mamba2", "mamba"), ("moe", "none"), ("mlp", "none")),
)
_PATTERN_KINDS: tuple[tuple[str, str], ...] = (
    *(("M", "mamba"), ("*", "full"), ("-", "none"), ("E", "none")),
)


class KvConfigUnusable(GovernorError):
    """KV bytes cannot be computed. `missing` lists absent config keys, if that is the reason."""

    def __init__(self, message: str, missing: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.missing = missing


@dataclass(frozen=True, slots=True)
class KvWindow:
    """Layers whose KV stops growing at `window_tokens`; bytes are over all those layers."""

    bytes_per_token: int
    window_tokens: int


@dataclass(frozen=True, slots=True)
class KvBytes:
    """What one sequence costs on one rank: growing, windowed and fixed bytes."""

    bytes_per_token: int
    windows: tuple[KvWindow, ...] = ()
    state_bytes: int = 0

    @property
    def fixed_bytes(self) -> int:
        """The most that a sequence holds besides its growing part: full windows and state."""
        windows = sum(window.bytes_per_token * window.window_tokens for window in self.windows)
        return windows + self.state_bytes

    def held_bytes(self, tokens: int) -> int:
        """Bytes held by one sequence of `tokens` tokens, before rounding to blocks."""
        windowed = sum(
            window.bytes_per_token * min(tokens, window.window_tokens) for window in self.windows
        )
        return self.bytes_per_token * tokens + windowed + self.state_bytes


def kv_bytes(config: Mapping[str, Any], *, kv_dtype: str = "auto", tp_size: int = 1) -> KvBytes:
    """KV bytes on one of `tp_size` ranks, for MHA, GQA, MQA, MLA, windows and hybrid state.

    `kv_dtype` is the engine's setting ("auto": the model's dtype). A multimodal config is read at
    its text part. Formulas: docs of vLLM and SGLang; Mamba-2 (2405.21060), Gated DeltaNet
    (2412.06464). Raises KvConfigUnusable for a config that lacks keys or uses a cache layout that
    is not known.
    """
    if tp_size < 1:
        raise ValueError(f"tp_size must be >= 1, got {tp_size}")
    facts = _Facts(config.get("text_config") or config)
    if facts.get("is_encoder_decoder") or facts.get("global_head_dim"):
        raise KvConfigUnusable("encoder-decoder or mixed head sizes: no KV formula is known")
    model_dtype = facts.get("torch_dtype", "dtype") or config.get("torch_dtype")
    model_dtype = str(model_dtype or config.get("dtype") or "bfloat16").removeprefix("torch.")
    dtype = model_dtype if kv_dtype == "auto" else kv_dtype
    kinds = _layer_kinds(facts)
    attention = _attention_layer_bytes(facts, dtype, tp_size)
    windows = tuple(
        KvWindow(attention * kinds.count(kind), facts.need(key))
        for kind, key in (("window", "sliding_window"), ("chunk", "attention_chunk_size"))
        if kind in kinds
    )
    state = 0
    if "mamba" in kinds:
        state += kinds.count("mamba") * _mamba2_layer_bytes(facts, model_dtype, tp_size)
    if "delta" in kinds:
        state += kinds.count("delta") * _delta_layer_bytes(facts, model_dtype, tp_size)
    facts.raise_missing()
    return KvBytes(attention * kinds.count("full"), windows, state)


class _Facts:
    """Reads a config under the names that families use, and collects what is missing."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._missing: list[str] = []

    def get(self, *names: str) -> Any:
        """The value of the first name that is present and not null, else None."""
        for name in names:
            if self._config.get(name) is not None:
                return self._config[name]
        return None

    def need(self, *names: str) -> int:
        """A positive integer, or 1 with the name noted as missing."""
        value = self.get(*names)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        self._missing.append(names[0])
        return 1

    def raise_missing(self) -> None:
        """Raise with everything that was needed and not there."""
        if self._missing:
            missing = tuple(dict.fromkeys(self._missing))
            raise KvConfigUnusable(f"config lacks {', '.join(missing)}", missing)


def _dtype_bytes(dtype: str) -> int:
    known = dict(_DTYPE_BYTES)
    if dtype not in known:
        raise KvConfigUnusable(f"unknown KV dtype {dtype!r}; known: {', '.join(known)}")
    return known[dtype]


def _layer_kinds(facts: _Facts) -> list[str]:
    """One kind per layer: full, window, chunk, mamba, delta or none."""
    pattern, types = facts.get("hybrid_override_pattern"), facts.get("layer_types")
    if pattern is not None:
        kinds = _translated(tuple(pattern), dict(_PATTERN_KINDS))
    elif types is not None:
        kinds = _translated(tuple(types), dict(_LAYER_KINDS))
        if facts.get("use_sliding_window") is False:
            kinds = ["full" if kind == "window" else kind for kind in kinds]
    else:
        layers = facts.need(*_LAYERS)
        kinds = [_kind_of(facts, layer) for layer in range(layers)]
    shared = facts.get("num_kv_shared_layers") or 0  # the last layers reuse the KV of earlier ones
    return kinds[: len(kinds) - shared]


def _translated(names: tuple[str, ...], known: Mapping[str, str]) -> list[str]:
    unknown = sorted({name for name in names if name not in known})
    if unknown:
        raise KvConfigUnusable(f"unknown layer types: {', '.join(unknown)}")
    return [known[name] for name in names]


def _kind_of(facts: _Facts, layer: int) -> str:
    """The kind of one layer where the config gives a rule and no list."""
    attention_at, interval = facts.get("attn_layer_indices"), facts.get("full_attention_interval")
    if attention_at is not None:
        return "full" if layer in attention_at else "mamba"
    if interval:
        return "full" if (layer + 1) % interval == 0 else "delta"
    if facts.get("ssm_state_size", "mamba_d_state") is not None:
        raise KvConfigUnusable("state-space layers without a known layer pattern")
    if not facts.get("sliding_window") or facts.get("use_sliding_window") is False:
        return "full"
    every = facts.get("sliding_window_pattern", "_sliding_window_pattern")
    if every is None and facts.get("model_type") == "gemma2":
        every = 2
    if every is not None:
        return "full" if (layer + 1) % every == 0 else "window"
    first = facts.get("max_window_layers")  # Qwen2: the layers from here on have the window
    return "full" if first is not None and layer < first else "window"


def _attention_layer_bytes(facts: _Facts, dtype: str, tp_size: int) -> int:
    latent = facts.get("kv_lora_rank")
    if latent is not None:
        # MLA: one latent for all heads, whole on every rank.
        index = facts.get("index_head_dim") or 0
        index_bytes = index + -(-index // _INDEX_SCALE_GROUP) * _SCALE_BYTES if index else 0
        rope = facts.need("qk_rope_head_dim")
        if dtype == "fp8_ds_mla":
            return _FP8_DS_MLA_BYTES + index_bytes
        return int(latent + rope) * _dtype_bytes(dtype) + index_bytes
    heads = facts.get(*_KV_HEADS)
    if heads is None:
        heads = 1 if facts.get("multi_query") else facts.need(*_HEADS)
    head_dim = facts.get("head_dim") or facts.need(*_HIDDEN) // facts.need(*_HEADS)
    scale = _SCALE_BYTES if dtype.endswith("_per_token_head") else 0
    heads_per_rank = -(
        -heads // tp_size
    )  # at least one: heads are copied where ranks outnumber them
    return int(2 * heads_per_rank * (head_dim * _dtype_bytes(dtype) + scale))


def _mamba2_layer_bytes(facts: _Facts, dtype: str, tp_size: int) -> int:
    heads = facts.need("mamba_num_heads", "mamba_n_heads")
    head_dim = facts.need("mamba_head_dim", "mamba_d_head")
    state = facts.need("ssm_state_size", "mamba_d_state")
    groups = facts.need("n_groups", "mamba_n_groups")
    kernel = facts.need("conv_kernel", "mamba_d_conv")
    channels = heads * head_dim + 2 * groups * state
    conv = -(-channels // tp_size) * (kernel - 1) * _dtype_bytes(dtype)
    return -(-heads // tp_size) * head_dim * state * _state_dtype_bytes(facts, dtype) + conv


def _delta_layer_bytes(facts: _Facts, dtype: str, tp_size: int) -> int:
    value_heads, value_dim = (
        facts.need("linear_num_value_heads"),
        facts.need("linear_value_head_dim"),
    )
    key_heads, key_dim = facts.need("linear_num_key_heads"), facts.need("linear_key_head_dim")
    kernel = facts.need("linear_conv_kernel_dim")
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    conv = -(-channels // tp_size) * (kernel - 1) * _dtype_bytes(dtype)
    state = -(-value_heads // tp_size) * key_dim * value_dim
    return state * _state_dtype_bytes(facts, dtype) + conv


def _state_dtype_bytes(facts: _Facts, dtype: str) -> int:
    return _dtype_bytes(str(facts.get("mamba_ssm_dtype") or dtype))
