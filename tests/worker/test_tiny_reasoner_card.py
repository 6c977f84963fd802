"""Keeps the tiny reasoner's model card true: the shipped weights still do what the card says."""

from random import Random

import pytest
import torch

from governor_probes.tiny_reasoner.build_data import ExampleBuilder
from governor_probes.tiny_reasoner.evaluate import (
    after_first_candidate,
    land,
    measure_chains,
    measure_repair,
)
from governor_probes.tiny_reasoner.generate import WEIGHTS, Reasoner
from governor_probes.tiny_reasoner.task import (
    THINK_END,
    candidates_of,
    is_right,
    make_problem,
    make_problems,
    prompt_text,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def reasoner() -> Reasoner:
    torch.set_num_threads(1)
    return Reasoner()


def test_prompt_text_is_what_the_chat_template_renders(reasoner: Reasoner) -> None:
    problem = make_problem(Random(3), 8)
    assert reasoner.render(problem.messages) == prompt_text(problem.question)


def test_the_tags_are_visible_tokens_of_their_own(reasoner: Reasoner) -> None:
    assert reasoner.encode(THINK_END) == [reasoner.end_id]
    assert THINK_END in reasoner.decode([reasoner.end_id])


@pytest.mark.parametrize(("items", "checks"), [(4, 0), (8, 1)])
def test_small_sums_are_right_and_checked_as_the_card_says(
    reasoner: Reasoner, items: int, checks: int
) -> None:
    figures, _ = measure_chains(reasoner, make_problems(Random(11), 16, items), 150, 0.0)
    assert figures.accuracy >= 0.94
    assert figures.unfinished == 0.0
    assert abs(figures.mean_checks - checks) <= 0.2


def test_ten_items_are_checked_for_ever_with_the_right_candidate_in_hand(
    reasoner: Reasoner,
) -> None:
    problems = make_problems(Random(12), 12, 10)
    figures, completions = measure_chains(reasoner, problems, 300, 0.0)
    assert figures.unfinished >= 0.9
    assert figures.accuracy <= 0.1
    assert figures.first_candidate_right >= 0.9
    cuts = [ids[: after_first_candidate(reasoner, ids)] for ids in completions]
    assert all(len(candidates_of(reasoner.decode(cut))) == 1 for cut in cuts)
    answers = land(reasoner, problems, cuts, f"\n{THINK_END}\n\n")
    right = sum(is_right(p, answer) for p, answer in zip(problems, answers, strict=True))
    assert right >= 11
    assert all(answers)


def test_a_check_repairs_a_planted_mistake(reasoner: Reasoner) -> None:
    assert measure_repair(reasoner, 8, 12, 100).by_next_check >= 0.9


def test_training_examples_are_within_the_context_and_learnable(reasoner: Reasoner) -> None:
    builder = ExampleBuilder(reasoner.encode)
    rng = Random(5)
    for _ in range(200):
        problem = make_problem(rng, rng.randint(2, 16))
        example = builder.example(problem, rng)
        assert len(example.token_ids) == len(example.weights) <= 1000
        assert max(example.weights) >= 1.0


def test_the_weights_ship_with_their_card() -> None:
    assert (WEIGHTS / "MODEL_CARD.md").is_file()
    assert (WEIGHTS / "model.safetensors").stat().st_size < 3_000_000
