"""Measures long chains of the tiny reasoner: is the right candidate still held, do landings work?

    python -m governor_probes.tiny_reasoner.evaluate_long --model DIR --n 60 --items 10,12,14

Greedy chains run to their end or to the last of `--limits`; every smaller limit is read off the
same chains. Landings are at random places behind the first candidate, and at random places of the
tail that only chains of more than `--tail` tokens have.
"""

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import torch

from governor_probes.tiny_reasoner.evaluate import FORCED_ENDS, after_first_candidate, land
from governor_probes.tiny_reasoner.generate import WEIGHTS, Reasoner
from governor_probes.tiny_reasoner.task import (
    Problem,
    TaskKind,
    answer_of,
    candidates_of,
    is_right,
    make_problems,
    prompt_text,
)


@dataclass(frozen=True, slots=True)
class LimitFigures:
    """The chains under one limit of completion tokens. Shares are of all problems.

    `held` is the share whose latest candidate is right, ended or not; `held_unfinished` the same
    among those still thinking, None where all have ended.
    """

    limit_tokens: int
    accuracy: float
    unfinished: float
    held: float
    held_unfinished: float | None
    mean_checks: float
    thinking_tokens_p50: int
    thinking_tokens_p90: int


@dataclass(frozen=True, slots=True)
class LandingFigures:
    """Share of right answers by way of ending; None where no chain was long enough."""

    chains: int
    right: dict[str, float] | None


@dataclass(frozen=True, slots=True)
class LongRow:
    """One difficulty of one task."""

    kind: str
    items: int
    problems: int
    limits: list[LimitFigures]
    landed_anywhere: LandingFigures
    landed_in_tail: LandingFigures


def _share(hits: list[bool]) -> float:
    return round(sum(hits) / len(hits), 3)


def at_limit(
    reasoner: Reasoner, problems: list[Problem], completions: list[list[int]], limit_tokens: int
) -> LimitFigures:
    """What a cap of `limit_tokens` on the same greedy chains would have shown."""
    capped = [ids[:limit_tokens] for ids in completions]
    thinking = [reasoner.thinking_ids(ids) for ids in capped]
    stated = [candidates_of(reasoner.decode(ids)) for ids in thinking]
    answers = [answer_of(reasoner.decode(ids)) for ids in capped]
    held = [bool(c) and c[-1] == p.answer for p, c in zip(problems, stated, strict=True)]
    going = [h for h, answer in zip(held, answers, strict=True) if answer is None]
    lengths = sorted(map(len, thinking))
    return LimitFigures(
        limit_tokens=limit_tokens,
        accuracy=_share([is_right(p, a) for p, a in zip(problems, answers, strict=True)]),
        unfinished=_share([answer is None for answer in answers]),
        held=_share(held),
        held_unfinished=_share(going) if going else None,
        mean_checks=round(sum(max(0, len(c) - 1) for c in stated) / len(stated), 2),
        thinking_tokens_p50=lengths[len(lengths) // 2],
        thinking_tokens_p90=lengths[int(len(lengths) * 0.9)],
    )


def landed(
    reasoner: Reasoner,
    problems: list[Problem],
    completions: list[list[int]],
    rng: Random,
    from_token: int | None,
) -> LandingFigures:
    """Lands chains at a random place from `from_token` on, or behind the first candidate."""
    chosen: list[Problem] = []
    cuts: list[list[int]] = []
    for problem, completion in zip(problems, completions, strict=True):
        ids = reasoner.thinking_ids(completion)
        first = after_first_candidate(reasoner, ids) if from_token is None else from_token
        if from_token is not None and len(ids) <= from_token:
            continue
        chosen.append(problem)
        cuts.append(ids[: rng.randint(min(first, len(ids)), len(ids))])
    if not chosen:
        return LandingFigures(0, None)
    right = {}
    for name, ending in FORCED_ENDS.items():
        answers = land(reasoner, chosen, cuts, ending)
        right[name] = _share([is_right(p, a) for p, a in zip(chosen, answers, strict=True)])
    return LandingFigures(len(chosen), right)


def measure_long(
    reasoner: Reasoner,
    kind: TaskKind,
    items: int,
    count: int,
    limits: list[int],
    tail_from: int,
) -> LongRow:
    """Everything about one difficulty; `limits` ascend, and the last one is generated."""
    problems = make_problems(Random(1000 + items), count, items, kind)
    prompts = [reasoner.encode(prompt_text(problem.question)) for problem in problems]
    completions = reasoner.complete(prompts, limits[-1])
    return LongRow(
        kind=str(kind),
        items=items,
        problems=count,
        limits=[at_limit(reasoner, problems, completions, limit) for limit in limits],
        landed_anywhere=landed(reasoner, problems, completions, Random(5 + items), None),
        landed_in_tail=landed(reasoner, problems, completions, Random(6 + items), tail_from),
    )


def main() -> None:
    """Command line. Prints one JSON object per difficulty as it is measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=WEIGHTS)
    parser.add_argument("--kind", type=TaskKind, choices=list(TaskKind), default=TaskKind.SUM)
    parser.add_argument("--n", type=int, default=60, help="problems per difficulty")
    parser.add_argument("--items", default="10,12,14")
    parser.add_argument("--limits", default="500,1000,1500", help="tokens, ascending")
    parser.add_argument("--tail", type=int, default=1000, help="tokens before the tail begins")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    reasoner = Reasoner(arguments.model)
    limits = sorted(map(int, arguments.limits.split(",")))
    for items in map(int, arguments.items.split(",")):
        row = measure_long(reasoner, arguments.kind, items, arguments.n, limits, arguments.tail)
        print(json.dumps(asdict(row)), flush=True)


if __name__ == "__main__":
    main()
