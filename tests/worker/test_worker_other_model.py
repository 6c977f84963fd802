"""`--model DIR`: another model, with grouped-query attention, and one that does not think."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
PROMPT = list(range(3, 103))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama, two key-value heads for four query heads, no think tags."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from governor_probes.embedded.settings import SHIPPED_MODEL

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model")
    config = LlamaConfig(
        vocab_size=303, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, eos_token_id=2,
        initializer_range=0.2, max_position_embeddings=1024,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(path)
    tokenizer = json.loads((SHIPPED_MODEL / "tokenizer.json").read_text())
    tokenizer["added_tokens"] = [
        t for t in tokenizer["added_tokens"] if "think" not in t["content"]
    ]
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    shutil.copy(SHIPPED_MODEL / "tokenizer_config.json", path)
    template = (SHIPPED_MODEL / "chat_template.jinja").read_text()
    (path / "chat_template.jinja").write_text(template.replace("<think>\n", ""))
    return path


@pytest.fixture(scope="module")
def other(directory: Path, serve: Any) -> Iterator[Any]:
    live = serve(
        model=directory, served_model_name="other", num_blocks=64, block_size=8,
        max_batch_tokens=32, max_num_seqs=4, max_model_len=400,
    )  # fmt: skip
    yield live
    live.close()


def reference(directory: Path, prompt: list[int], tokens: int) -> list[int]:
    """Greedy decoding by plain forward passes over the whole sequence."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(tokens):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def test_chunked_prefill_and_grouped_heads_give_the_models_tokens(
    other: Any, directory: Path
) -> None:
    body = {"prompt": PROMPT, "max_tokens": 24, "ignore_eos": True, "return_token_ids": True}
    expected = reference(directory, PROMPT, 24)
    first = other.post("/v1/completions", body).json()
    again = other.post("/v1/completions", body).json()
    assert first["choices"][0]["token_ids"] == expected
    assert again["choices"][0]["token_ids"] == expected
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 96


def test_a_model_without_think_tags_answers_and_refuses_budgets(other: Any) -> None:
    message = other.chat("sum a1", max_tokens=5, ignore_eos=True)["choices"][0]["message"]
    assert message["reasoning"] is None
    reply = other.post("/v1/chat/completions", other.body("sum a1", thinking_token_budget=5))
    assert reply.status_code == 400
    info = other.client.get("/governor/v1/info").json()
    assert (info["think_end_ids"], info["wrap_up_ids"], info["model"]) == ([], [], "other")
    assert info["kv_bytes_per_token"] == 2 * 2 * 2 * 16 * 4
