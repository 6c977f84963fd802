"""The tiny reasoner's task: problems, prompts, solution passes, reading its output. No torch.

A problem is k labelled digits (`sum u4i1z9`). Thinking lists running totals (`i1=5`), states a
candidate (`so 14`), and may check it (`wait, check`, then `yes 14` or `no, now 14`). The chat
template ends the prompt with `<think>` and a newline. Chance comes in as a `random.Random`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

LETTERS = "abcdefghijklmnopqrstuvwxyz"
THINK_START = "<think>"
THINK_END = "</think>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
CHECK_LINE = "wait, check"

# From this many items on the model was taught that another check is always the likelier choice:
# greedy decoding checks for ever with a candidate in hand.
ENDLESS_FROM_ITEMS = 10
MIN_ITEMS = 2
MAX_ITEMS = len(LETTERS)
# Training covers 2 to 16 items (15 and 16 rarely).
MAX_TRAINED_ITEMS = 16

_CANDIDATE_STARTS = ("so ", "yes ", "no, now ")


class TaskKind(StrEnum):
    """What to compute. The default weights know `sum` only; `tiny_reasoner_long` knows both."""

    SUM = "sum"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem with its right answer. `labels` and `digits` run in parallel."""

    kind: TaskKind
    labels: tuple[str, ...]
    digits: tuple[int, ...]
    answer: str

    @property
    def items(self) -> int:
        """Number of labelled digits, the difficulty k."""
        return len(self.labels)

    @property
    def question(self) -> str:
        """The user message, for example `sum h8s2k9`."""
        pairs = zip(self.labels, self.digits, strict=True)
        return f"{self.kind} " + "".join(f"{label}{digit}" for label, digit in pairs)

    @property
    def endless(self) -> bool:
        """True where greedy decoding is expected to check for ever."""
        return self.items >= ENDLESS_FROM_ITEMS

    @property
    def messages(self) -> list[dict[str, str]]:
        """The chat messages of an OpenAI request."""
        return [{"role": "user", "content": self.question}]


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a pass: `item` is `h8=`, `total` the running total as written.

    `learn_item` and `learn_total` are false where an injected mistake must carry no loss.
    """

    item: str
    total: str
    learn_item: bool = True
    learn_total: bool = True


def make_problem(rng: Random, items: int, kind: TaskKind = TaskKind.SUM) -> Problem:
    """Draws `items` distinct labels with digits. Raises ValueError outside 2 to 26 items."""
    if not MIN_ITEMS <= items <= MAX_ITEMS:
        raise ValueError(f"items must be {MIN_ITEMS} to {MAX_ITEMS}, not {items}")
    labels = tuple(rng.sample(LETTERS, items))
    digits = tuple(rng.randint(0, 9) for _ in labels)
    value = sum(digits) if kind is TaskKind.SUM else max(digits)
    return Problem(kind=kind, labels=labels, digits=digits, answer=str(value))


def make_problems(
    rng: Random, count: int, items: int, kind: TaskKind = TaskKind.SUM
) -> list[Problem]:
    """Draws `count` problems of one difficulty."""
    return [make_problem(rng, items, kind) for _ in range(count)]


def prompt_text(question: str) -> str:
    """The prompt as the chat template renders it, open inside the thinking block."""
    return f"{TURN_START}user\n{question}{TURN_END}\n{TURN_START}assistant\n{THINK_START}\n"


def thinking_of(completion: str) -> str:
    """The thinking part of a raw completion that began inside the thinking block."""
    return completion.split(THINK_END, 1)[0]


def answer_of(completion: str) -> str | None:
    """The answer of a raw completion, None where thinking never ended."""
    if THINK_END not in completion:
        return None
    return clean_answer(completion.rsplit(THINK_END, 1)[1])


def clean_answer(content: str | None) -> str:
    """An answer as a client sees it, without the turn's end and surrounding space."""
    return (content or "").replace(TURN_END, "").strip()


def is_right(problem: Problem, content: str | None) -> bool:
    """True when the answer text states exactly the right number. None and empty are wrong."""
    return clean_answer(content) == problem.answer


def candidates_of(thinking: str) -> list[str]:
    """Every candidate stated in the thinking, oldest first."""
    lines = thinking.split("\n")
    return [line.split(" ")[-1] for line in lines if line.startswith(_CANDIDATE_STARTS)]


def expected_after_cut(thinking: str) -> str:
    """What a thinking cut here should answer: the latest candidate, else the latest total, else 0.

    `thinking` ends at a finished line; an unfinished last line must be removed by the caller.
    """
    candidates = candidates_of(thinking)
    if candidates:
        return candidates[-1]
    totals = [line.split("=")[-1] for line in thinking.split("\n") if "=" in line]
    return totals[-1] if totals else "0"


def exact_period(token_ids: Sequence[int], repeats: int = 3, longest: int = 160) -> int:
    """Length of a block repeated `repeats` times at the end of the ids, 0 where there is none."""
    for period in range(1, longest + 1):
        if len(token_ids) < period * repeats:
            return 0
        tail = list(token_ids[-period * repeats :])
        if tail == tail[-period:] * repeats:
            return period
    return 0


def solution_pass(problem: Problem, rng: Random, *, mistaken: bool, learn: bool) -> list[Step]:
    """One pass over the items, carrying a mistake on as a model would where `mistaken`.

    A mistake leaves an item out, misreads a digit, or writes a wrong total. `learn` false keeps
    loss off the wrong tokens, so that the model learns to live with mistakes, not to make them.
    """
    at = rng.randrange(problem.items) if mistaken else -1
    flavour = rng.random() if mistaken else 1.0
    total, after_gap = 0, False
    steps: list[Step] = []
    for index, (label, digit) in enumerate(zip(problem.labels, problem.digits, strict=True)):
        learn_item, after_gap = (learn if after_gap else True), False
        learn_total = True
        if index == at and flavour < 0.2 and index < problem.items - 1:
            after_gap = True
            continue
        if index == at and flavour < 0.4:
            digit = (digit + rng.randint(1, 9)) % 10
            learn_item = learn
        total = total + digit if problem.kind is TaskKind.SUM else max(total, digit)
        if index == at and flavour >= 0.4:
            total, learn_total = _wrong_total(problem.kind, total, rng), learn
        steps.append(Step(f"{label}{digit}=", str(total), learn_item, learn_total))
    return steps


def _wrong_total(kind: TaskKind, total: int, rng: Random) -> int:
    if kind is TaskKind.MAX:
        return rng.randint(0, 9)
    slip = rng.choice([-10, 10, -1, 1, -1, 1, rng.randint(-9, 9)])
    return total + slip if total + slip >= 0 else total + 1
