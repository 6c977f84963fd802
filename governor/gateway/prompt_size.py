"""PromptSizes: prompt tokens from prompt bytes, by the model's own measured ratio."""

# Bytes of text per token before any measurement: English text in a large vocabulary.
ASSUMED_BYTES_PER_TOKEN = 4.0
# What a chat template adds to one message: its marks and role, and the opening of the answer
# (ChatML with an open thinking block: 10). For a short question it is more than the text.
TEMPLATE_TOKENS = 10
# Beyond these no tokenizer is known; what says so is a template's overhead on a tiny prompt, or
# tokens of images, whose bytes are not text.
LEAST_BYTES_PER_TOKEN = 0.5
MOST_BYTES_PER_TOKEN = 32.0
# Tokens that a measurement remembers. By tokens, not by requests: a greeting in a template of
# 30 tokens says nothing of a long text, and moves the ratio little.
MEMORY_TOKENS = 512.0


class PromptSizes:
    """Learns bytes per token of each model from the usage that workers report."""

    def __init__(self, most_models: int = 256) -> None:
        self._ratios: dict[str, float] = {}
        self._most = most_models

    def estimate(self, model: str, text_bytes: int) -> int:
        """Prompt tokens to expect."""
        ratio = self._ratios.get(model, ASSUMED_BYTES_PER_TOKEN)
        return TEMPLATE_TOKENS + round(text_bytes / ratio)

    def learn(self, model: str, text_bytes: int, prompt_tokens: int) -> None:
        """A prompt of so many bytes had so many tokens."""
        if prompt_tokens <= 0 or text_bytes <= 0:
            return
        if model not in self._ratios and len(self._ratios) >= self._most:
            return
        old = self._ratios.get(model, ASSUMED_BYTES_PER_TOKEN)
        weight = prompt_tokens / (prompt_tokens + MEMORY_TOKENS)
        of_text = max(1, prompt_tokens - TEMPLATE_TOKENS)
        ratio = old + weight * (text_bytes / of_text - old)
        self._ratios[model] = min(MOST_BYTES_PER_TOKEN, max(LEAST_BYTES_PER_TOKEN, ratio))
