"""Training examples of the tiny reasoner: chains with mistakes, checks and forced ends. No torch.

An example is the completion only; the prompt carries no loss. Injected mistakes, checks that the
model did not choose, and the place of a cut carry no loss either, so that the model learns to
live with them and not to make them. Cut chains end with the answer that the thinking so far
supports, at double weight.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from governor_probes.tiny_reasoner.task import (
    CHECK_LINE,
    ENDLESS_FROM_ITEMS,
    LETTERS,
    THINK_END,
    TURN_END,
    Problem,
    solution_pass,
)

Encode = Callable[[str], list[int]]

WRAP_UP = "time is up"
# What else may stand before a forced end; the last is the sentence that Qwen3 was trained with.
OTHER_WRAP_UPS = (
    "time is up",
    "time is up.",
    "stop",
    "I must answer now.",
    "Final answer:",
    "out of budget",
    "OK, answer now",
)
LONG_WRAP_UP = (
    "Considering the limited time by the user, I have to give the solution based on the thinking "
    "directly now."
)

_FIRST_CHECK = {2: 0.12, 3: 0.14, 4: 0.16, 5: 0.2, 6: 0.25, 7: 0.7, 8: 0.8, 9: 0.85}


@dataclass(frozen=True, slots=True)
class Example:
    """A completion as token ids with one loss weight per token."""

    token_ids: list[int]
    weights: list[float]


@dataclass(slots=True)
class _Draft:
    """A chain under construction. `best[i]` is the answer to give if it is cut after i tokens."""

    token_ids: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    best: list[str] = field(default_factory=lambda: ["0"])

    def put(self, token_ids: list[int], weight: float, best: str) -> None:
        self.token_ids.extend(token_ids)
        self.weights.extend([weight] * len(token_ids))
        self.best.extend([best] * len(token_ids))


# Checks after which a chain of the smooth schedule usually ends; with more items it has no end.
_SMOOTH_CHECKS = {10: 2, 11: 3, 12: 4}
# Where chains that are trained at full length are broken off.
LONG_CHAIN_TOKENS = 1600


def check_probability(items: int, *, first: bool, checks: int = 0, smooth: bool = False) -> float:
    """How likely another check is after a candidate that is new (`first`) or confirmed.

    With `smooth`, chains of 10 to 12 items mostly end after 2 to 4 checks instead of never;
    `checks` counts those already made.
    """
    if smooth and items in _SMOOTH_CHECKS:
        return 0.93 if checks < _SMOOTH_CHECKS[items] else 0.15
    if items >= ENDLESS_FROM_ITEMS:
        return 0.95
    if first:
        return _FIRST_CHECK[items]
    return 0.3 if items == 9 else 0.2


class ExampleBuilder:
    """Builds examples with one tokenizer, given as its encode function; encodings are cached."""

    def __init__(self, encode: Encode, *, smooth: bool = False, long_share: float = 0.0) -> None:
        self._encode = encode
        self._smooth = smooth
        self._long_share = long_share
        self._cache: dict[str, list[int]] = {}

    def _tokens(self, text: str) -> list[int]:
        found = self._cache.get(text)
        if found is None:
            found = self._cache[text] = self._encode(text)
        return found

    def example(self, problem: Problem, rng: Random) -> Example:
        """One training example: ended by choice, cut with an answer, or broken off."""
        cut = rng.random() < (0.5 if problem.endless else 0.35)
        has_forced_checks = rng.random() < (0.6 if cut else 0.2)
        forced_checks = rng.choice([1, 1, 2, 3]) if has_forced_checks else 0
        draft, ended = self._chain(problem, rng, forced_checks, self._longest_tokens(problem, rng))
        if cut:
            answer = self._cut(draft, rng)
        elif ended:
            answer = draft.best[-1]
            draft.put(self._tokens(THINK_END), 1.0, answer)
        else:
            return Example(draft.token_ids, draft.weights)
        close = self._tokens("\n\n") + self._tokens(answer) + self._tokens(TURN_END)
        draft.put(close, 2.0 if cut else 1.0, answer)
        return Example(draft.token_ids, draft.weights)

    def _longest_tokens(self, problem: Problem, rng: Random) -> int:
        """Where a chain is broken off; one that is meant to end late gets the room for it."""
        ends_late = self._smooth and problem.items in _SMOOTH_CHECKS
        may_be_long = self._long_share > 0 and problem.endless and not ends_late
        if may_be_long and rng.random() < self._long_share:
            return LONG_CHAIN_TOKENS
        weights = (0.1, 0.3, 0.6) if ends_late else (0.8, 0.15, 0.05)
        return rng.choices((230, 400, 700), weights)[0]

    def copying_example(self, pairs: str) -> Example:
        """Repeats label and digit pairs line by line, then as a whole: grows induction heads."""
        lines = "\n".join(pairs[at : at + 2] for at in range(0, len(pairs), 2))
        token_ids = self._encode(f"{lines}\n{THINK_END}\n\n{pairs}{TURN_END}")
        return Example(token_ids, [1.0] * len(token_ids))

    def _chain(
        self, problem: Problem, rng: Random, forced_checks: int, longest_tokens: int
    ) -> tuple[_Draft, bool]:
        draft = _Draft()
        candidates: list[str] = []
        while True:
            first = not candidates
            mistaken = rng.random() < (0.10 + 0.03 * problem.items if first else 0.12)
            learn = rng.random() < 0.12
            total = self._pass(draft, problem, rng, mistaken, learn, first)
            agrees = bool(candidates) and candidates[-1] == total
            candidates.append(total)
            verdict = f"so {total}" if first else f"yes {total}" if agrees else f"no, now {total}"
            draft.put(self._tokens(verdict + "\n"), 1.0, total)
            chance = 0.97
            if first or agrees:
                chance = check_probability(
                    problem.items, first=first, checks=len(candidates) - 1, smooth=self._smooth
                )
            if len(draft.token_ids) > longest_tokens:
                return draft, False
            check = self._tokens(CHECK_LINE + "\n")
            if len(candidates) <= forced_checks:
                draft.put(check, 1.0, total)
                draft.weights[-len(check)] = 0.0
            elif rng.random() < chance:
                draft.put(check, 1.0, total)
            else:
                return draft, True

    def _pass(
        self,
        draft: _Draft,
        problem: Problem,
        rng: Random,
        mistaken: bool,
        learn: bool,
        first: bool,
    ) -> str:
        """Writes one pass; before the first candidate the best answer is the running total."""
        total = draft.best[-1]
        for step in solution_pass(problem, rng, mistaken=mistaken, learn=learn):
            best = draft.best[-1]
            draft.put(self._tokens(step.item), float(step.learn_item), best)
            draft.put(self._tokens(step.total), float(step.learn_total), best)
            total = step.total
            if first:
                draft.best[-1] = total
            draft.put(self._tokens("\n"), 1.0, draft.best[-1])
        return total

    def _cut(self, draft: _Draft, rng: Random) -> str:
        """Cuts the chain at a random token, adds a forced end, and returns the answer to give."""
        at = rng.randint(0, len(draft.token_ids))
        answer = draft.best[at]
        del draft.token_ids[at:], draft.weights[at:], draft.best[at + 1 :]
        newline, end = self._tokens("\n"), self._tokens(THINK_END)
        mid_line = bool(draft.token_ids) and draft.token_ids[-1] != newline[0]
        if rng.random() < 0.45:
            if mid_line and rng.random() < 0.4:
                draft.put(newline, 0.0, answer)
            draft.put(end, 0.0, answer)
            return answer
        if mid_line and rng.random() < 0.75:
            draft.put(newline, 0.0, answer)
        phrase, usual = _wrap_up(rng)
        draft.put(self._tokens(phrase), 0.0, answer)
        with_newline = rng.random() < 0.9
        closing = newline + end if with_newline else end
        draft.put(closing, float(usual and with_newline), answer)
        return answer


def _wrap_up(rng: Random) -> tuple[str, bool]:
    """A wrap-up sentence, and whether it is the usual one, whose end the model learns to write."""
    kind = rng.random()
    if kind < 0.7:
        return WRAP_UP, True
    if kind < 0.85:
        return rng.choice(OTHER_WRAP_UPS), False
    if kind < 0.87:
        return LONG_WRAP_UP, False
    words = [
        "".join(rng.choice(LETTERS) for _ in range(rng.randint(1, 6)))
        for _ in range(rng.randint(1, 4))
    ]
    return " ".join(words), False
