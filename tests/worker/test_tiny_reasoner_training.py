"""The tiny reasoner's training options: smooth difficulty, position jumps, second task."""

from random import Random

import pytest
import torch

from governor_probes.tiny_reasoner.build_data import ExampleBuilder, check_probability
from governor_probes.tiny_reasoner.task import THINK_END, TaskKind, make_problem
from governor_probes.tiny_reasoner.train import Batches, PositionJumps, Sample, Settings

CHECK = [7, 8]


def test_smooth_chains_of_ten_to_twelve_items_end_after_two_to_four_checks() -> None:
    for items, checks in ((10, 2), (11, 3), (12, 4)):
        likely = [
            check_probability(items, first=n == 0, checks=n, smooth=True) > 0.5 for n in range(6)
        ]
        assert likely == [n < checks for n in range(6)]
    assert check_probability(13, first=False, checks=9, smooth=True) == 0.95
    assert check_probability(10, first=False, checks=9) == 0.95


def test_more_smooth_chains_of_eleven_items_end_by_themselves() -> None:
    def ended(*, smooth: bool) -> int:
        builder = ExampleBuilder(lambda text: list(text.encode()), smooth=smooth)
        rng = Random(5)
        texts = [
            bytes(builder.example(make_problem(rng, 11), rng).token_ids).decode()
            for _ in range(300)
        ]
        # A chain that its maker broke off has no end tag at all.
        return sum(THINK_END in text for text in texts)

    assert ended(smooth=True) > 1.1 * ended(smooth=False)


def sample(*starts: int, length: int = 40) -> Sample:
    ids = [1] * length
    for at in starts:
        ids[at - len(CHECK) : at] = CHECK
    return Sample(ids, [1.0] * length, prompt_tokens=5)


def test_positions_jump_once_at_the_start_of_a_pass_and_stay_in_range() -> None:
    jumps = PositionJumps(1.0, 3, CHECK, longest=2_000)
    batch = [sample(15, 30), sample(20)]
    seen: set[int] = set()
    for _ in range(200):
        positions = jumps.positions(batch, 40)
        assert positions is not None
        assert int(positions.max()) < 2_000
        for row in range(2):
            steps = torch.diff(positions[row])
            at = (steps > 1).nonzero().flatten().tolist()
            assert len(at) <= 1
            assert bool((steps >= 1).all())
            seen.update((row, a + 1) for a in at)
    assert seen == {(0, 5), (0, 15), (0, 30), (1, 5), (1, 20)}


def test_without_a_share_nothing_jumps() -> None:
    assert PositionJumps(0.0, 3, CHECK, longest=2_000).positions([sample(15)], 40) is None


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_the_second_task_has_its_share(share: float) -> None:
    def encode(text: str) -> list[int]:
        return list(text.encode())

    settings = Settings(max_share=share, resume="other weights", batch_tokens=3_000)
    batches = Batches(encode, Random(1), settings)
    prompts = [
        bytes(s.token_ids[: s.prompt_tokens]).decode()
        for _ in range(12)
        for s in batches.next(0.5)
        if s.prompt_tokens
    ]
    found = sum(TaskKind.MAX.value in prompt for prompt in prompts) / len(prompts)
    assert found == 0.0 if share == 0.0 else 0.3 < found < 0.7
