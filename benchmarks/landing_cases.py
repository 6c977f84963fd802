"""Forced landings as data: which problem is landed how and where, and what came of it. Pure.

`landing.py` sends the requests; nothing here knows of processes or time.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from governor_probes.tiny_reasoner.task import (
    THINK_END,
    THINK_START,
    Problem,
    candidates_of,
    clean_answer,
    expected_after_cut,
    is_right,
    make_problem,
)

# Half of the cases wait for the end of a line in so many tokens, half are cut in mid-line.
GRACE_TOKENS = 16
# "\n</think>\n\n" and the turn that the model ends after it; the wrap-up is one token of thinking.
WRAP_UP_TOKENS = 4
# A smaller budget than this is a wrap-up and nothing else: thinking would be switched off instead.
LEAST_BUDGET_TOKENS = 2 * WRAP_UP_TOKENS
# What a request thinks on while an operator's landing travels, and until the end of its line.
OPERATOR_LAG_TOKENS = 24
# Cuts behind the first candidate lie up to so many times its position.
FURTHEST_CUT = 2.5

_CHAIN_LINE = re.compile(r"^\s*(?:[a-z]\d=|so \d|yes \d|no, now \d|wait, check)", re.MULTILINE)


class Path(StrEnum):
    """What forces the landing."""

    CLIENT_BUDGET = "client_budget"
    GOVERNOR_BUDGET = "governor_budget"
    OPERATOR = "operator"


class Place(StrEnum):
    """Where thinking is cut: before or behind the first candidate."""

    BEFORE = "before_candidate"
    BEHIND = "behind_candidate"


# From 7 items on the model thinks on behind its first candidate; an operator's landing needs time,
# and a chain of fewer than 6 items has ended before it comes.
_ITEMS = {
    (Path.CLIENT_BUDGET, Place.BEFORE): (4, 5, 6, 7, 8, 9, 10, 11, 12),
    (Path.GOVERNOR_BUDGET, Place.BEFORE): (4, 5, 6, 7, 8, 9, 10, 11, 12),
    (Path.OPERATOR, Place.BEFORE): (6, 7, 8, 9, 10, 11, 12),
    (Path.CLIENT_BUDGET, Place.BEHIND): (7, 8, 9, 10, 11, 12),
    (Path.GOVERNOR_BUDGET, Place.BEHIND): (7, 8, 9, 10, 11, 12),
    (Path.OPERATOR, Place.BEHIND): (7, 8, 9, 10, 11, 12),
}


@dataclass(frozen=True, slots=True)
class Draft:
    """A problem with the way in which it will be landed; `draw` in [0, 1) will say where.

    With `grace_tokens` 0 thinking is cut exactly at its budget, also in the middle of a line.
    """

    problem: Problem
    path: Path
    place: Place
    grace_tokens: int
    draw: float


@dataclass(frozen=True, slots=True)
class Natural:
    """The same problem left alone: its thinking, its length, where the first candidate's line ends.

    Thinking that was cut off by the completion limit is as long as that limit at the least.
    """

    thinking: str
    thinking_tokens: int
    first_candidate_tokens: int


@dataclass(frozen=True, slots=True)
class Case:
    """One landing to be forced: by a budget of `at_tokens`, or by an operator after that many."""

    draft: Draft
    natural: Natural
    at_tokens: int

    @property
    def problem(self) -> Problem:
        return self.draft.problem

    @property
    def budget_tokens(self) -> int | None:
        """The cap that the client states; None for an operator's landing."""
        return None if self.draft.path is Path.OPERATOR else self.at_tokens

    def deltas(self, stream_interval: int) -> int:
        """After how many reasoning deltas the operator lands: the first holds one token."""
        return 1 + (self.at_tokens - 1) // stream_interval


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one case. `counted_tokens` is thinking by token ids, where they were asked."""

    case: Case
    stream_interval: int
    landed: str | None
    thinking: str
    content: str
    thinking_tokens: int | None
    counted_tokens: int | None
    granted_tokens: int | None
    reasoning_after_content: bool
    error: str | None

    @property
    def forced(self) -> bool:
        """False where thinking ended by itself before the operator's landing came."""
        lost_race = self.case.draft.path is Path.OPERATOR and self.landed is None
        return not (lost_race and self.thinking.strip() == self.case.natural.thinking.strip())

    @property
    def confirmed(self) -> bool:
        """The gateway's own account says that it landed this one for the reason that was given."""
        expected = "operator" if self.case.draft.path is Path.OPERATOR else "budget_spent"
        return self.landed == expected

    @property
    def empty(self) -> bool:
        return not clean_answer(self.content)

    @property
    def right(self) -> bool:
        return is_right(self.case.problem, self.content)

    @property
    def resumed_thinking(self) -> bool:
        """Tags or steps of a chain in the answer, or thinking that comes behind it."""
        tagged = THINK_START in self.content or THINK_END in self.content
        return tagged or self.reasoning_after_content or bool(_CHAIN_LINE.search(self.content))

    @property
    def cap_exceeded(self) -> bool:
        """More thinking, wrap-up included, than the client's number or the grant. Unknown counts as
        exceeded: a cap that cannot be checked is not kept."""
        cap = self.case.budget_tokens or self.granted_tokens
        if cap is None or self.thinking_tokens is None:
            return True
        return max(self.thinking_tokens, self.counted_tokens or 0) > cap

    @property
    def supported(self) -> bool:
        """The answer is what the thinking so far says: its latest candidate, else its total."""
        whole_lines = self.thinking[: self.thinking.rfind("\n") + 1]
        said = {expected_after_cut(whole_lines), expected_after_cut(self.thinking)}
        return clean_answer(self.content) in said

    @property
    def place(self) -> Place:
        """Where thinking really ended."""
        return Place.BEHIND if candidates_of(self.thinking) else Place.BEFORE


def drafts(count: int, seed: int) -> list[Draft]:
    """`count` problems: three paths and two graces by turns, one in three cut before its first
    candidate."""
    rng = Random(seed)
    turns: dict[tuple[Path, Place], int] = {}
    made = []
    for index in range(count):
        path = tuple(Path)[index % 3]
        place = Place.BEFORE if index // 3 % 3 == 0 else Place.BEHIND
        grace = GRACE_TOKENS if index // 9 % 2 == 0 else 0
        turn = turns.get((path, place), 0)
        turns[path, place] = turn + 1
        items = _ITEMS[path, place][turn % len(_ITEMS[path, place])]
        made.append(Draft(make_problem(rng, items), path, place, grace, rng.random()))
    return made


def first_candidate_line(thinking: str) -> str | None:
    """The thinking up to the end of the first candidate's line; None where there is none."""
    so_far = ""
    for line in thinking.splitlines(keepends=True):
        so_far += line
        if candidates_of(line) and line.endswith("\n"):
            return so_far
    return None


def case_of(draft: Draft, natural: Natural) -> Case | None:
    """Where to land the draft; None where its thinking is too short for that place."""
    first, whole = natural.first_candidate_tokens, natural.thinking_tokens
    operator = draft.path is Path.OPERATOR
    tail = OPERATOR_LAG_TOKENS if operator else 1
    if draft.place is Place.BEFORE:
        low = 1 if operator else LEAST_BUDGET_TOKENS
        high = first - tail
    else:
        low = first if operator else first + WRAP_UP_TOKENS + GRACE_TOKENS + 1
        high = min(whole - tail, int(FURTHEST_CUT * first))
    if high < low:
        return None
    return Case(draft, natural, low + int(draft.draw * (high - low + 1)))


def thinking_tokens_of(token_ids: Sequence[int], think_end_id: int) -> int | None:
    """Thinking by the engine's token ids: all before the end tag; None where it did not come."""
    return token_ids.index(think_end_id) if think_end_id in token_ids else None
