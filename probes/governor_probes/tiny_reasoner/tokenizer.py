"""The tiny reasoner's tokenizer: letters, digits and the task's few words, in Hugging Face format.

The thinking tags are added but not special, as in Qwen3: a reasoning parser must see them.
"""

from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from governor_probes.tiny_reasoner.task import THINK_END, THINK_START, TURN_END, TURN_START

CONTEXT_TOKENS = 2048
PAD = "<|pad|>"
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
_WORDS = "user|assistant|system|sum|max|wait|check|yes|now|no|so|time|is|up|say"
_PIECES = rf"[^\S\n]?(?:{_WORDS})\b|[A-Za-z]|\d|\n|[^\S\n]|[^\sA-Za-z\d]"
_CORPUS = (
    "user\nassistant\nsystem\nsum\nmax\nsay\nwait, check\nyes\nno, now\nso\ntime is up\n"
    " check is up now\n"
)


def build_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Trains the tokenizer (the result is the same every time) and saves it in `folder`."""
    pieces = pre_tokenizers.Split(Regex(_PIECES), "isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pieces, as_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=[PAD, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=2,
    )
    tokenizer.train_from_iterator([_CORPUS * 20], trainer)
    tags = (THINK_START, THINK_END)
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in tags])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=TURN_END,
        bos_token=None,
        additional_special_tokens=[TURN_START],
        model_max_length=CONTEXT_TOKENS,
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    wrapped.save_pretrained(str(folder))
    return wrapped
