"""PromptSizes: prompt tokens from prompt bytes, by the model's own measured ratio."""

# Bytes of text per token before any measurement: English text in a large vocabulary.
ASSUMED_BYTES_PER_TOKEN = 4.0
WEIGHT = 0.2


class PromptSizes:
    """Learns bytes per token of each model from the usage that workers report."""

    def __init__(self, most_models: int = 256) -> None:
        self._ratios: dict[str, float] = {}
        self._most = most_models

    def estimate(self, model: str, text_bytes: int) -> int:
        """Prompt tokens to expect, at least 1."""
        ratio = self._ratios.get(model, ASSUMED_BYTES_PER_TOKEN)
        return max(1, round(text_bytes / ratio))

    def learn(self, model: str, text_bytes: int, prompt_tokens: int) -> None:
        """A prompt of so many bytes had so many tokens."""
        if prompt_tokens <= 0 or text_bytes <= 0:
            return
        ratio = text_bytes / prompt_tokens
        old = self._ratios.get(model)
        if old is None and len(self._ratios) >= self._most:
            return
        self._ratios[model] = ratio if old is None else old + WEIGHT * (ratio - old)
