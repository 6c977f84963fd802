"""Keeps the second weights' card true: long chains keep the answer, hard sums end, two tasks."""

from random import Random

import pytest
import torch

from governor.core.families import family_of
from governor_probes.tiny_reasoner.evaluate import land, measure_chains
from governor_probes.tiny_reasoner.evaluate_long import at_limit
from governor_probes.tiny_reasoner.generate import LONG_WEIGHTS, WEIGHTS, Reasoner
from governor_probes.tiny_reasoner.task import (
    THINK_END,
    TaskKind,
    is_right,
    make_problems,
    prompt_text,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def reasoner() -> Reasoner:
    torch.set_num_threads(1)
    return Reasoner(LONG_WEIGHTS)


@pytest.mark.parametrize("kind", TaskKind)
def test_both_tasks_are_right_and_checked_at_eight_items(
    reasoner: Reasoner, kind: TaskKind
) -> None:
    figures, _ = measure_chains(reasoner, make_problems(Random(11), 12, 8, kind), 240, 0.0)
    assert figures.accuracy >= 0.9
    assert 0.8 <= figures.mean_checks <= 1.8


def test_eleven_items_end_by_themselves_after_a_few_checks(reasoner: Reasoner) -> None:
    figures, _ = measure_chains(reasoner, make_problems(Random(12), 10, 11), 480, 0.0)
    assert figures.unfinished <= 0.1
    assert figures.accuracy >= 0.8
    assert 2 <= figures.mean_checks <= 5


def test_an_endless_chain_keeps_and_lands_its_answer_past_a_thousand_tokens(
    reasoner: Reasoner,
) -> None:
    problems = make_problems(Random(13), 4, 14)
    prompts = [reasoner.encode(prompt_text(problem.question)) for problem in problems]
    completions = reasoner.complete(prompts, 1050)
    for limit in (600, 1050):
        figures = at_limit(reasoner, problems, completions, limit)
        assert figures.unfinished >= 0.75
        assert figures.held >= 0.75
    cuts = [reasoner.thinking_ids(ids) for ids in completions]
    answers = land(reasoner, problems, cuts, f"\n{THINK_END}\n\n")
    assert sum(is_right(p, a) for p, a in zip(problems, answers, strict=True)) >= 3
    assert all(answers)


def test_the_weights_ship_with_their_card_and_speak_the_same_language() -> None:
    assert (LONG_WEIGHTS / "MODEL_CARD.md").is_file()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"):
        assert (LONG_WEIGHTS / name).read_bytes() == (WEIGHTS / name).read_bytes()


@pytest.mark.parametrize("served", ["tiny-reasoner-long", LONG_WEIGHTS.name])
def test_the_gateway_knows_their_family(served: str) -> None:
    family = family_of(served)
    assert family is not None
    assert family.name == "tiny-reasoner"
