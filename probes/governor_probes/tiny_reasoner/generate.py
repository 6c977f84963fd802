"""Plain generation with the tiny reasoner's weights: greedy or sampled, in left-padded batches.

For evaluation and tests. Serving is the embedded worker's business.
"""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from governor_probes.tiny_reasoner.task import THINK_END

_MODELS = Path(__file__).parent.parent / "models"
WEIGHTS = _MODELS / "tiny_reasoner"
# Both tasks, hard sums that end, long chains that keep the answer. Benchmarks use WEIGHTS.
LONG_WEIGHTS = _MODELS / "tiny_reasoner_long"


class Reasoner:
    """A model folder in Hugging Face format, loaded in float32."""

    def __init__(self, folder: Path = WEIGHTS) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(str(folder), padding_side="left")
        model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
        self._model = model.eval()
        self._pad_id: int = self._tokenizer.pad_token_id
        self.end_id: int = self._tokenizer.convert_tokens_to_ids(THINK_END)
        self.newline_id: int = self.encode("\n")[0]

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without any added token."""
        ids: list[int] = self._tokenizer(text)["input_ids"]
        return ids

    def decode(self, token_ids: list[int]) -> str:
        """Text of token ids, special tokens included."""
        text: str = self._tokenizer.decode(token_ids)
        return text

    def render(self, messages: list[dict[str, str]]) -> str:
        """The prompt as the model's own chat template renders it."""
        text: str = self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        return text

    def thinking_ids(self, completion: list[int]) -> list[int]:
        """The completion up to the end of thinking, or all of it."""
        if self.end_id in completion:
            return completion[: completion.index(self.end_id)]
        return completion

    def complete(
        self, prompts: list[list[int]], limit_tokens: int, temperature: float = 0.0
    ) -> list[list[int]]:
        """Completions, padding removed. Temperature 0 is greedy; sampling uses torch's own seed."""
        longest = max(map(len, prompts))
        rows = [[self._pad_id] * (longest - len(prompt)) + prompt for prompt in prompts]
        token_ids = torch.tensor(rows)
        sampling = (
            {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
            if temperature
            else {"do_sample": False}
        )
        output = self._model.generate(
            input_ids=token_ids,
            attention_mask=(token_ids != self._pad_id).long(),
            max_new_tokens=limit_tokens,
            pad_token_id=self._pad_id,
            **sampling,
        )
        completions: list[list[int]] = output[:, longest:].tolist()
        return [[i for i in row if i != self._pad_id] for row in completions]
