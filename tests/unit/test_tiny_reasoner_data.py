"""Training chains of the tiny reasoner: checks, places to break off, answers."""

from random import Random
from statistics import mean

import pytest

from governor_probes.tiny_reasoner.build_data import (
    LONG_CHAIN_TOKENS,
    ExampleBuilder,
    check_probability,
)
from governor_probes.tiny_reasoner.task import (
    CHECK_LINE,
    THINK_END,
    TaskKind,
    make_problem,
    thinking_of,
)


def characters(text: str) -> list[int]:
    return [ord(character) for character in text]


def chains(items: int, count: int, *, smooth: bool = False, long_share: float = 0.0) -> list[str]:
    builder = ExampleBuilder(characters, smooth=smooth, long_share=long_share)
    rng = Random(items)
    return [
        "".join(map(chr, builder.example(make_problem(rng, items), rng).token_ids))
        for _ in range(count)
    ]


@pytest.mark.parametrize(("items", "usual"), [(10, 2), (11, 3), (12, 4)])
def test_smooth_chains_want_checks_up_to_their_usual_number(items: int, usual: int) -> None:
    for checks in range(8):
        chance = check_probability(items, first=checks == 0, checks=checks, smooth=True)
        assert (chance > 0.5) == (checks < usual)
        assert check_probability(items, first=checks == 0, checks=checks) > 0.9


def test_smoothness_leaves_easy_and_endless_problems_alone() -> None:
    for items in (*range(2, 10), 13, 16):
        for checks in range(4):
            plain = check_probability(items, first=checks == 0, checks=checks)
            assert check_probability(items, first=checks == 0, checks=checks, smooth=True) == plain


def test_smooth_chains_of_ten_end_by_themselves_and_those_of_thirteen_do_not() -> None:
    def broken_off(items: int, smooth: bool) -> float:
        return mean(THINK_END not in chain for chain in chains(items, 300, smooth=smooth))

    assert broken_off(10, smooth=True) < 0.15 < 0.3 < broken_off(10, smooth=False)
    assert broken_off(13, smooth=True) > 0.3


def test_a_share_of_the_endless_chains_is_long() -> None:
    def long_ones(share: float) -> float:
        found = chains(14, 200, smooth=True, long_share=share)
        checks = [len(thinking_of(chain)) for chain in found if THINK_END not in chain]
        return mean(length > LONG_CHAIN_TOKENS for length in checks)

    assert long_ones(0.0) == 0.0
    assert long_ones(1.0) == 1.0
    assert 0.2 < long_ones(0.5) < 0.8


def test_chains_that_end_are_never_long() -> None:
    assert max(map(len, chains(10, 100, smooth=True, long_share=1.0))) < LONG_CHAIN_TOKENS


@pytest.mark.parametrize("kind", TaskKind)
def test_uncut_chains_of_either_task_state_and_answer_the_result(kind: TaskKind) -> None:
    builder, rng = ExampleBuilder(characters), Random(4)
    right = 0
    for _ in range(100):
        problem = make_problem(rng, 4, kind)
        example = builder.example(problem, rng)
        text = "".join(map(chr, example.token_ids))
        assert len(example.token_ids) == len(example.weights)
        right += text.endswith(f"{THINK_END}\n\n{problem.answer}<|im_end|>")
        assert CHECK_LINE not in text or "so " in text
    assert right > 50
