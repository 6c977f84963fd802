"""Token ids to bytes and text, for any Hugging Face tokenizer. No chat templates here."""

import codecs
import json
from typing import Any

from governor_probes.landing_state import ThinkTags, WrapUp


def _byte_level_map() -> dict[str, int]:
    """The printable stand-ins that byte-level BPE writes for bytes (GPT-2's published table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(b): b for b in printable}
    others = [b for b in range(256) if b not in set(printable)]
    table.update({chr(256 + i): b for i, b in enumerate(others)})
    return table


class Vocabulary:
    """Bytes of every token, special ids and think tags of one tokenizer."""

    def __init__(self, tokenizer: Any, eos_ids: frozenset[int]) -> None:
        self.tokenizer = tokenizer
        self.special_ids = frozenset(int(i) for i in tokenizer.all_special_ids)
        self.eos_ids = eos_ids
        self._bytes = self._token_bytes(tokenizer)

    def __len__(self) -> int:
        return len(self._bytes)

    def encode(self, text: str) -> list[int]:
        """Ids of a text as it stands: no special tokens are added, those in the text are known."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def decode(self, ids: list[int]) -> str:
        """Text of ids, special tokens included."""
        text: str = self.tokenizer.decode(ids, skip_special_tokens=False)
        return text

    def raw(self, token_id: int) -> bytes:
        """The bytes of a token; a special token's are its name. Empty for an unknown id."""
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""

    def output_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to an output: special tokens add none."""
        return b"" if token_id in self.special_ids else self.raw(token_id)

    def token_string(self, token_id: int) -> str:
        """A token as text for logprobs."""
        return self.raw(token_id).decode("utf-8", "replace")

    def think_tags(self, start: str, end: str) -> ThinkTags | None:
        """Think tags, where both are single tokens or the chat template names them; else None."""
        start_ids, end_ids = self.encode(start), self.encode(end)
        template = self.tokenizer.chat_template or ""
        known = len(start_ids) == 1 and len(end_ids) == 1
        if not known and not (isinstance(template, str) and start in template):
            return None
        return ThinkTags(start_ids=tuple(start_ids), end_ids=tuple(end_ids))

    def wrap_up(self, text: str, tags: ThinkTags) -> WrapUp:
        """A wrap-up text as tokens, with its form for the start of a line."""
        return WrapUp.around(
            self.encode(text), self.encode(text.lstrip("\n") or text), tags.end_ids
        )

    @staticmethod
    def _token_bytes(tokenizer: Any) -> list[bytes]:
        backend = json.loads(tokenizer.backend_tokenizer.to_str())
        byte_level = _byte_level_map() if "ByteLevel" in json.dumps(backend["decoder"]) else None
        added = {int(t["id"]): str(t["content"]) for t in backend["added_tokens"]}
        size = len(tokenizer)
        pieces = tokenizer.convert_ids_to_tokens(list(range(size)))
        table: list[bytes] = []
        for token_id, piece in enumerate(pieces):
            if token_id in added or piece is None:
                table.append(added.get(token_id, "").encode())
            elif byte_level is not None:
                table.append(bytes(byte_level[c] for c in piece if c in byte_level))
            elif len(piece) == 6 and piece.startswith("<0x"):
                table.append(bytes([int(piece[3:5], 16)]))
            else:
                table.append(piece.replace("▁", " ").encode())
        return table


class TextDecoder:
    """Turns a request's tokens into text piece by piece; incomplete UTF-8 waits for its rest."""

    __slots__ = ("_decoder", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_id: int) -> str:
        """Text that the token completes; empty while a character is incomplete."""
        return self._decoder.decode(self._vocabulary.output_bytes(token_id))

    def finish(self) -> str:
        """What an incomplete last character becomes."""
        return self._decoder.decode(b"", final=True)
