"""The tiny reasoner's task: problems, prompt text, passes with mistakes, reading its output."""

import subprocess
import sys
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor_probes.tiny_reasoner.task import (
    ENDLESS_FROM_ITEMS,
    TaskKind,
    answer_of,
    candidates_of,
    exact_period,
    expected_after_cut,
    is_right,
    make_problem,
    make_problems,
    prompt_text,
    solution_pass,
    thinking_of,
)

seeds = st.integers(0, 2**32)
sizes = st.integers(2, 16)


@given(seeds, sizes, st.sampled_from(TaskKind))
def test_question_states_every_digit_and_the_answer_follows(
    seed: int, items: int, kind: TaskKind
) -> None:
    problem = make_problem(Random(seed), items, kind)
    word, pairs = problem.question.split(" ")
    digits = [int(pairs[i]) for i in range(1, len(pairs), 2)]
    assert word == kind
    assert len(set(pairs[::2])) == len(digits) == problem.items == items
    assert problem.answer == str(sum(digits) if kind is TaskKind.SUM else max(digits))
    assert problem.endless == (items >= ENDLESS_FROM_ITEMS)


def test_problems_depend_on_the_given_generator_only() -> None:
    assert make_problems(Random(3), 5, 8) == make_problems(Random(3), 5, 8)
    assert make_problems(Random(3), 5, 8) != make_problems(Random(4), 5, 8)


@pytest.mark.parametrize("items", [1, 27])
def test_impossible_sizes_are_refused(items: int) -> None:
    with pytest.raises(ValueError, match="2 to 26"):
        make_problem(Random(0), items)


def test_prompt_is_open_inside_the_thinking_block() -> None:
    text = prompt_text("sum a1b2")
    assert text == "<|im_start|>user\nsum a1b2<|im_end|>\n<|im_start|>assistant\n<think>\n"


def test_a_completion_is_read_as_thinking_candidates_and_answer() -> None:
    completion = "a1=1\nb2=4\nso 4\nwait, check\na1=1\nb2=3\nno, now 3\n</think>\n\n3<|im_end|>"
    assert candidates_of(thinking_of(completion)) == ["4", "3"]
    assert answer_of(completion) == "3"
    assert answer_of("a1=1\nb2=3\nso 3\n") is None


def test_only_the_exact_number_is_right() -> None:
    problem = make_problem(Random(0), 4)
    assert is_right(problem, f" {problem.answer}<|im_end|>")
    assert not is_right(problem, f"{problem.answer}0")
    assert not is_right(problem, "")
    assert not is_right(problem, None)


@pytest.mark.parametrize(
    ("thinking", "expected"),
    [("", "0"), ("a1=1\nb2=3\n", "3"), ("a1=1\nso 1\nwait, check\na1=9\n", "1")],
)
def test_a_cut_is_expected_to_give_the_latest_candidate_or_total(
    thinking: str, expected: str
) -> None:
    assert expected_after_cut(thinking) == expected


@given(seeds, sizes, st.sampled_from(TaskKind))
def test_a_pass_without_mistake_ends_at_the_answer(seed: int, items: int, kind: TaskKind) -> None:
    rng = Random(seed)
    problem = make_problem(rng, items, kind)
    steps = solution_pass(problem, rng, mistaken=False, learn=True)
    assert len(steps) == items
    assert steps[-1].total == problem.answer
    assert all(step.learn_item and step.learn_total for step in steps)


@given(seeds, sizes)
def test_an_unlearned_mistake_keeps_loss_off_what_is_wrong(seed: int, items: int) -> None:
    rng = Random(seed)
    problem = make_problem(rng, items)
    steps = solution_pass(problem, rng, mistaken=True, learn=False)
    truth = solution_pass(problem, rng, mistaken=False, learn=True)
    if steps[-1].total != problem.answer:
        assert any(not (step.learn_item and step.learn_total) for step in steps)
    assert len(truth) - 1 <= len(steps) <= len(truth)


@given(st.lists(st.integers(0, 5), max_size=30), st.integers(2, 5))
def test_exact_period_is_a_real_repetition(ids: list[int], repeats: int) -> None:
    period = exact_period(ids, repeats)
    if period:
        assert ids[-period * repeats :] == ids[-period:] * repeats
    assert exact_period([*ids, *([7, 8, 9] * repeats)], repeats) == 3


def test_the_task_needs_no_torch() -> None:
    code = "import sys, governor_probes.tiny_reasoner.task; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], timeout=60, check=False)
    assert done.returncode == 0
