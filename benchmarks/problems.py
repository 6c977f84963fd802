"""The tiny reasoner's problems as a benchmark sends them, and what came of one. Pure; no I/O."""

import re
from enum import StrEnum
from random import Random

from benchmarks.client import Reply
from governor_probes.tiny_reasoner.task import (
    CHECK_LINE,
    ENDLESS_FROM_ITEMS,
    MIN_ITEMS,
    THINK_END,
    THINK_START,
    Problem,
    candidates_of,
    clean_answer,
    is_right,
    make_problem,
)

ENDLESS_SHARE = 0.1
ENDLESS_ITEMS = tuple(range(ENDLESS_FROM_ITEMS, 15))
ENDING_ITEMS = tuple(range(MIN_ITEMS, ENDLESS_FROM_ITEMS))

# A line of the task's thinking: a running total or a stated candidate.
_THINKING_LINE = re.compile(r"^[a-z]\d=|^(?:so|yes|no, now) \d", re.MULTILINE)


class WhyWrong(StrEnum):
    """Why an answer is wrong."""

    REQUEST_FAILED = "request_failed"
    NO_ANSWER = "no_answer"
    NO_CANDIDATE_YET = "no_candidate_yet"
    CANDIDATE_WRONG = "candidate_wrong"
    CANDIDATE_LOST = "candidate_lost"


def strata(count: int) -> dict[int, int]:
    """Problems per number of items: a tenth checks for ever, the rest is spread evenly.

    What does not divide goes to the strata from the smallest on. Raises ValueError below 10.
    """
    if count < 10:
        raise ValueError(f"the mix needs at least 10 problems, not {count}")
    endless = round(count * ENDLESS_SHARE)
    found: dict[int, int] = {}
    for items, total in ((ENDING_ITEMS, count - endless), (ENDLESS_ITEMS, endless)):
        each, more = divmod(total, len(items))
        found |= {k: each + (index < more) for index, k in enumerate(items)}
    return found


def mix(seed: int, count: int) -> list[Problem]:
    """`count` problems in the fixed mix, in an order drawn with the seed."""
    rng = Random(seed)
    problems = [make_problem(rng, k) for k, share in strata(count).items() for _ in range(share)]
    rng.shuffle(problems)
    return problems


def answered(reply: Reply) -> bool:
    """Whether a whole stream brought an answer that is not blank."""
    return reply.error is None and clean_answer(reply.content) != ""


def right(problem: Problem, reply: Reply) -> bool:
    """Whether the answer is exactly the right number."""
    return reply.error is None and is_right(problem, reply.content)


def resumed_thinking(reply: Reply) -> bool:
    """Whether thinking went on inside the answer.

    That is reasoning behind answer text, a think tag in the answer, or a line of this task's
    thinking in it.
    """
    tags = THINK_START in reply.content or THINK_END in reply.content
    lines = CHECK_LINE in reply.content or _THINKING_LINE.search(reply.content) is not None
    return reply.reasoning_after_content or tags or lines


def why_wrong(problem: Problem, reply: Reply) -> WhyWrong | None:
    """Why the answer is wrong; None where it is right.

    `CANDIDATE_WRONG`: the model answered with its latest candidate, which was wrong.
    `CANDIDATE_LOST`: its latest candidate was another number than its answer.
    """
    if reply.error is not None:
        return WhyWrong.REQUEST_FAILED
    if right(problem, reply):
        return None
    if not answered(reply):
        return WhyWrong.NO_ANSWER
    candidates = candidates_of(reply.reasoning)
    if not candidates:
        return WhyWrong.NO_CANDIDATE_YET
    same = candidates[-1] == clean_answer(reply.content)
    return WhyWrong.CANDIDATE_WRONG if same else WhyWrong.CANDIDATE_LOST
