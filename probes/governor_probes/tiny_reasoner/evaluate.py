"""Measures the tiny reasoner: accuracy, lengths, repair of mistakes, and answers after forced ends.

    python -m governor_probes.tiny_reasoner.evaluate --n 100 --items 2,4,6,10,14 --json FILE

Every row is one difficulty. Problems are fixed by the difficulty; sampling is fixed by the order
of the rows. MODEL_CARD.md beside the weights holds a full run.
"""

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import torch

from governor_probes.tiny_reasoner.generate import WEIGHTS, Reasoner
from governor_probes.tiny_reasoner.task import (
    CHECK_LINE,
    Problem,
    TaskKind,
    answer_of,
    candidates_of,
    clean_answer,
    exact_period,
    expected_after_cut,
    is_right,
    make_problems,
    prompt_text,
    solution_pass,
)

TEMPERATURES = {"greedy": 0.0, "t07": 0.7, "t10": 1.0}
CUT_SHARES = (0.25, 0.50, 0.75, 0.90)
FORCED_ENDS = {
    "bare": "</think>",
    "newline": "\n</think>\n\n",
    "phrase": "\ntime is up\n</think>\n\n",
    "phrase_only": "\ntime is up\n",
}
_ANSWER_TOKENS = 10


@dataclass(frozen=True, slots=True)
class ChainFigures:
    """Whole chains at one temperature. Shares are of all problems unless a count is named."""

    accuracy: float
    unfinished: float
    first_candidate_right: float
    last_candidate_right: float
    thinking_tokens_p50: int
    thinking_tokens_p90: int
    mean_checks: float
    looping: float
    wrong_first: int
    wrong_first_checked: int
    wrong_first_repaired: int


@dataclass(frozen=True, slots=True)
class RepairFigures:
    """A mistake planted in the first pass: repaired by the next check, or at the end."""

    by_next_check: float
    at_the_end: float


@dataclass(frozen=True, slots=True)
class CutFigures:
    """Answers after a forced end: right, and as the thinking so far supports."""

    accuracy: float
    follows_rule: float


@dataclass(frozen=True, slots=True)
class Row:
    """One difficulty. `cuts` is keyed by place (`25` … `after_first_candidate`), then by end."""

    items: int
    problems: int
    chains: dict[str, ChainFigures]
    planted: RepairFigures
    cuts: dict[str, dict[str, CutFigures]]


def _share(hits: list[bool]) -> float:
    return round(sum(hits) / len(hits), 3)


def measure_chains(
    reasoner: Reasoner, problems: list[Problem], limit_tokens: int, temperature: float
) -> tuple[ChainFigures, list[list[int]]]:
    """Lets every problem run to its end or to `limit_tokens`; also returns the completions."""
    prompts = [reasoner.encode(prompt_text(problem.question)) for problem in problems]
    completions = reasoner.complete(prompts, limit_tokens, temperature)
    thinking = [reasoner.thinking_ids(ids) for ids in completions]
    stated = [candidates_of(reasoner.decode(ids)) for ids in thinking]
    lengths = sorted(map(len, thinking))
    answers = [answer_of(reasoner.decode(ids)) for ids in completions]
    runs = list(zip(problems, stated, strict=True))
    wrong = [(p, c) for p, c in runs if c and c[0] != p.answer]
    checked = [(p, c) for p, c in wrong if len(c) > 1]
    figures = ChainFigures(
        accuracy=_share([is_right(p, a) for p, a in zip(problems, answers, strict=True)]),
        unfinished=_share([answer is None for answer in answers]),
        first_candidate_right=_share([bool(c) and c[0] == p.answer for p, c in runs]),
        last_candidate_right=_share([bool(c) and c[-1] == p.answer for p, c in runs]),
        thinking_tokens_p50=lengths[len(lengths) // 2],
        thinking_tokens_p90=lengths[int(len(lengths) * 0.9)],
        mean_checks=round(sum(max(0, len(c) - 1) for c in stated) / len(stated), 3),
        looping=_share(
            [
                answer is None and exact_period(ids) > 0
                for answer, ids in zip(answers, completions, strict=True)
            ]
        ),
        wrong_first=len(wrong),
        wrong_first_checked=len(checked),
        wrong_first_repaired=sum(c[-1] == p.answer for p, c in checked),
    )
    return figures, completions


def measure_repair(
    reasoner: Reasoner,
    items: int,
    count: int,
    limit_tokens: int,
    kind: TaskKind = TaskKind.SUM,
) -> RepairFigures:
    """Writes a first pass with a wrong candidate and a check, and lets the model go on."""
    rng = Random(7 + items)
    problems: list[Problem] = []
    prompts: list[list[int]] = []
    while len(prompts) < count:
        problem = make_problems(rng, 1, items, kind)[0]
        steps = solution_pass(problem, rng, mistaken=True, learn=True)
        if steps[-1].total == problem.answer:
            continue
        lines = "".join(f"{step.item}{step.total}\n" for step in steps)
        begun = f"{lines}so {steps[-1].total}\n{CHECK_LINE}\n"
        prompts.append(reasoner.encode(prompt_text(problem.question) + begun))
        problems.append(problem)
    completions = reasoner.complete(prompts, min(limit_tokens, 4 * (8 * items + 10)))
    stated = [candidates_of(reasoner.decode(reasoner.thinking_ids(ids))) for ids in completions]
    runs = list(zip(problems, stated, strict=True))
    return RepairFigures(
        by_next_check=_share([bool(c) and c[0] == p.answer for p, c in runs]),
        at_the_end=_share([bool(c) and c[-1] == p.answer for p, c in runs]),
    )


def after_first_candidate(reasoner: Reasoner, thinking: list[int]) -> int:
    """How many tokens stand before the end of the first candidate's line, newline included."""
    begun = False
    for at, token_id in enumerate(thinking):
        begun = begun or reasoner.decode([token_id]) == "so"
        if begun and token_id == reasoner.newline_id:
            return at + 1
    return len(thinking)


def land(
    reasoner: Reasoner, problems: list[Problem], cuts: list[list[int]], ending: str
) -> list[str]:
    """The answers that follow when each thinking in `cuts` is ended by `ending`."""
    prompts = []
    for problem, cut in zip(problems, cuts, strict=True):
        at_line_start = bool(cut) and cut[-1] == reasoner.newline_id
        text = ending.lstrip("\n") if at_line_start and ending[0] == "\n" else ending
        prompt = reasoner.encode(prompt_text(problem.question))
        prompts.append(prompt + cut + reasoner.encode(text))
    completions = reasoner.complete(prompts, _ANSWER_TOKENS)
    return [
        clean_answer(reasoner.decode(completion).rsplit("</think>", 1)[-1])
        for completion in completions
    ]


def measure_cuts(
    reasoner: Reasoner, problems: list[Problem], completions: list[list[int]], rng: Random
) -> dict[str, dict[str, CutFigures]]:
    """Cuts greedy chains at shares of their length and at a random place behind a candidate."""
    thinking = [reasoner.thinking_ids(ids) for ids in completions]
    places: dict[str, list[int]] = {
        f"{share:.0%}": [len(ids) * round(share * 100) // 100 for ids in thinking]
        for share in CUT_SHARES
    }
    places["after_first_candidate"] = [
        rng.randint(after_first_candidate(reasoner, ids) - 1, len(ids)) for ids in thinking
    ]
    figures: dict[str, dict[str, CutFigures]] = {}
    for place, positions in places.items():
        cuts = [ids[:at] for ids, at in zip(thinking, positions, strict=True)]
        expected = []
        for ids, at in zip(thinking, positions, strict=True):
            text = reasoner.decode(ids[:at])
            line_ends_here = ids[at : at + 1] in ([reasoner.newline_id], [])
            finished = text if line_ends_here else text[: text.rfind("\n") + 1]
            expected.append(expected_after_cut(finished))
        figures[place] = {}
        for name, ending in FORCED_ENDS.items():
            answers = land(reasoner, problems, cuts, ending)
            figures[place][name] = CutFigures(
                _share([is_right(p, a) for p, a in zip(problems, answers, strict=True)]),
                _share([a == e for a, e in zip(answers, expected, strict=True)]),
            )
    return figures


def measure(
    reasoner: Reasoner, items: int, count: int, limit_tokens: int, kind: TaskKind = TaskKind.SUM
) -> Row:
    """Everything about one difficulty."""
    problems = make_problems(Random(1000 + items), count, items, kind)
    chains: dict[str, ChainFigures] = {}
    greedy: list[list[int]] = []
    for name, temperature in TEMPERATURES.items():
        chains[name], completions = measure_chains(reasoner, problems, limit_tokens, temperature)
        greedy = greedy or completions
    planted = measure_repair(reasoner, items, count, limit_tokens, kind)
    cuts = measure_cuts(reasoner, problems, greedy, Random(5 + items))
    return Row(items, count, chains, planted, cuts)


def main() -> None:
    """Command line. Prints one JSON object per difficulty as it is measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=WEIGHTS)
    parser.add_argument("--kind", type=TaskKind, choices=list(TaskKind), default=TaskKind.SUM)
    parser.add_argument("--n", type=int, default=100, help="problems per difficulty")
    parser.add_argument("--items", default="2,4,6,8,9,10,12,14,16")
    parser.add_argument("--cap", type=int, default=500, help="tokens per completion")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    reasoner = Reasoner(arguments.model)
    rows = []
    for items in map(int, arguments.items.split(",")):
        row = measure(reasoner, items, arguments.n, arguments.cap, arguments.kind)
        rows.append(asdict(row))
        print(json.dumps(rows[-1]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
