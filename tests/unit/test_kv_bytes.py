"""KV bytes per token from vendored config facts: the table that admission and area rest on."""

import json
from pathlib import Path
from typing import Any

import pytest

from governor.core.kv_bytes import KvBytes, KvConfigUnusable, KvWindow, kv_bytes


def gqa(layers: int, kv_heads: int, head_dim: int, **extra: Any) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "num_attention_heads": 32,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "torch_dtype": "bfloat16",
        **extra,
    }


def without_head_dim(layers: int, hidden: int, heads: int, kv_heads: int) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "torch_dtype": "bfloat16",
        # Qwen2 configs carry a window that is switched off.
        "use_sliding_window": False,
        "sliding_window": 131_072,
        "max_window_layers": layers,
    }


DEEPSEEK_V3 = {
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "hidden_size": 7168,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "torch_dtype": "bfloat16",
}


def gpt_oss(layers: int) -> dict[str, Any]:
    types = ["sliding_attention", "full_attention"] * (layers // 2)
    return gqa(layers, 8, 64, sliding_window=128, layer_types=types)


GEMMA_3_27B = {
    "model_type": "gemma3",
    "torch_dtype": "bfloat16",
    "text_config": {
        "num_hidden_layers": 62,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "sliding_window": 1024,
        "sliding_window_pattern": 6,
    },
}

QWEN3_NEXT = gqa(
    48,
    2,
    256,
    full_attention_interval=4,
    linear_num_key_heads=16,
    linear_num_value_heads=32,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    linear_conv_kernel_dim=4,
)

NEMOTRON_H = {
    "hybrid_override_pattern": "M-M*-",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "torch_dtype": "bfloat16",
}

SHIPPED = Path(__file__).parents[2] / "probes/governor_probes/models/tiny_reasoner/config.json"
TINY_REASONER: dict[str, Any] = json.loads(SHIPPED.read_text())


@pytest.mark.parametrize(
    ("name", "config", "bytes_per_token"),
    [
        ("Llama-3.1-8B", without_head_dim(32, 4096, 32, 8), 131_072),
        ("Llama-3-70B", without_head_dim(80, 8192, 64, 8), 327_680),
        ("Qwen2.5-72B", without_head_dim(80, 8192, 64, 8), 327_680),
        ("Llama-3.1-405B", without_head_dim(126, 16_384, 128, 8), 516_096),
        ("Qwen3-0.6B", gqa(28, 8, 128, hidden_size=1024), 114_688),
        ("Qwen3-4B and 8B", gqa(36, 8, 128), 147_456),
        ("Qwen3-14B", gqa(40, 8, 128), 163_840),
        ("Qwen3-32B and QwQ-32B", gqa(64, 8, 128), 262_144),
        ("Qwen3-30B-A3B", gqa(48, 4, 128), 98_304),
        ("Qwen3-235B-A22B", gqa(94, 4, 128), 192_512),
        ("R1-Distill-Qwen-1.5B", without_head_dim(28, 1536, 12, 2), 28_672),
        ("R1-Distill-Qwen-7B", without_head_dim(28, 3584, 28, 4), 57_344),
        ("R1-Distill-Qwen-14B", without_head_dim(48, 5120, 40, 8), 196_608),
        ("DeepSeek-V3", DEEPSEEK_V3, 70_272),
        ("gpt-oss-20b", gpt_oss(24), 24_576),
        ("gpt-oss-120b", gpt_oss(36), 36_864),
        ("Gemma-3-27B", GEMMA_3_27B, 81_920),
        ("Qwen3-Next-80B-A3B", QWEN3_NEXT, 24_576),
        ("shipped tiny reasoner", TINY_REASONER, 3_072),
    ],
)
def test_bytes_per_token_of_known_models(
    name: str, config: dict[str, Any], bytes_per_token: int
) -> None:
    assert kv_bytes(config).bytes_per_token == bytes_per_token, name


@pytest.mark.parametrize(
    ("config", "fixed_bytes"),
    [
        (gpt_oss(24), 3_145_728),
        (gpt_oss(36), 4_718_592),
        (GEMMA_3_27B, 436_207_616),
        # 36 layers of 32 x 128 x 128 state and 3 x 8,192 convolution inputs, two bytes each.
        (QWEN3_NEXT, 36 * (32 * 128 * 128 + 3 * 8192) * 2),
        # 2 Mamba layers of 128 x 64 x 128 state and 3 x 10,240 convolution inputs.
        (NEMOTRON_H, 2 * (128 * 64 * 128 + 3 * 10_240) * 2),
        (TINY_REASONER, 0),
    ],
)
def test_windows_and_state_are_fixed_costs(config: dict[str, Any], fixed_bytes: int) -> None:
    assert kv_bytes(config).fixed_bytes == fixed_bytes


def test_a_window_stops_growing_and_the_rest_goes_on() -> None:
    cost = KvBytes(bytes_per_token=10, windows=(KvWindow(4, 128),), state_bytes=7)
    assert cost.held_bytes(100) == 10 * 100 + 4 * 100 + 7
    assert cost.held_bytes(1000) == 10 * 1000 + 4 * 128 + 7
    assert cost.held_bytes(1000) == cost.bytes_per_token * 1000 + cost.fixed_bytes


def test_heads_are_split_over_ranks_and_copied_when_ranks_outnumber_them() -> None:
    config = gqa(64, 8, 128)
    assert kv_bytes(config, tp_size=4).bytes_per_token == 262_144 // 4
    assert kv_bytes(config, tp_size=16).bytes_per_token == 262_144 // 8


def test_mla_is_whole_on_every_rank() -> None:
    assert kv_bytes(DEEPSEEK_V3, tp_size=8) == kv_bytes(DEEPSEEK_V3)


def test_the_kv_dtype_of_the_engine_overrides_the_models() -> None:
    config = gqa(64, 8, 128)
    assert kv_bytes(config, kv_dtype="fp8_e4m3").bytes_per_token == 262_144 // 2
    scaled = kv_bytes(config, kv_dtype="fp8_per_token_head").bytes_per_token
    assert scaled == 2 * 64 * 8 * (128 + 4)
    assert kv_bytes(DEEPSEEK_V3, kv_dtype="fp8_ds_mla").bytes_per_token == 61 * 656


def test_the_sparse_attention_indexer_adds_its_keys() -> None:
    with_index = {**DEEPSEEK_V3, "index_head_dim": 128}
    assert kv_bytes(with_index).bytes_per_token == 70_272 + 61 * 132


def test_multi_head_and_multi_query_attention() -> None:
    gpt2 = {"n_layer": 12, "n_head": 12, "n_embd": 768, "torch_dtype": "float32"}
    assert kv_bytes(gpt2).bytes_per_token == 2 * 12 * 768 * 4
    assert kv_bytes({**gpt2, "multi_query": True}).bytes_per_token == 2 * 12 * 64 * 4


def test_layers_that_share_kv_are_not_counted() -> None:
    assert kv_bytes(gqa(30, 2, 256, num_kv_shared_layers=10)) == kv_bytes(gqa(20, 2, 256))


def test_a_window_on_all_layers() -> None:
    assert kv_bytes(gqa(32, 8, 128, sliding_window=4096)) == KvBytes(0, (KvWindow(131_072, 4096),))


def test_everything_missing_is_listed_at_once() -> None:
    with pytest.raises(KvConfigUnusable) as caught:
        kv_bytes({"torch_dtype": "bfloat16"})
    assert caught.value.missing == ("num_hidden_layers", "num_attention_heads", "hidden_size")


@pytest.mark.parametrize(
    ("config", "kv_dtype", "words"),
    [
        (gqa(2, 8, 128, layer_types=["full_attention", "retention"]), "auto", "retention"),
        (gqa(2, 8, 128), "fp3", "fp3"),
        (gqa(2, 8, 128, is_encoder_decoder=True), "auto", "encoder-decoder"),
        (gqa(2, 8, 128, mamba_d_state=16), "auto", "layer pattern"),
    ],
)
def test_a_layout_that_is_not_known_is_refused_by_name(
    config: dict[str, Any], kv_dtype: str, words: str
) -> None:
    with pytest.raises(KvConfigUnusable, match=words):
        kv_bytes(config, kv_dtype=kv_dtype)
