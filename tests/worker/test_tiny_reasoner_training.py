"""Training the tiny reasoner: schedule of steps, resuming, jumps in the positions, second task."""

import json
from pathlib import Path
from random import Random

import pytest
import torch
from safetensors.torch import load_file

from governor_probes.tiny_reasoner.generate import WEIGHTS
from governor_probes.tiny_reasoner.position_jumps import PositionJumps
from governor_probes.tiny_reasoner.task import TaskKind
from governor_probes.tiny_reasoner.train import Batches, Settings, train

pytestmark = pytest.mark.slow

CHECK = [7, 8]
# Prompt of three tokens, then three passes: they start at 3, 8 and 13.
CHAIN = ([1, 2, 3, 4, 5, 6, *CHECK, 4, 5, 6, *CHECK, 4, 5, 6], 3)
STARTS = {3, 8, 13}


def test_positions_jump_at_the_start_of_passes_only_and_stay_in_range() -> None:
    drawn = PositionJumps(1.0, 1, CHECK, 500).draw([CHAIN] * 200, 16)
    assert drawn is not None
    assert drawn[:, :3].tolist() == [[0, 1, 2]] * 200
    steps = drawn.diff(dim=1)
    assert set((torch.nonzero(steps > 1)[:, 1] + 1).tolist()) == STARTS
    assert int(steps.min()) >= 1
    assert 300 < int(drawn.max()) < 500
    assert any(len(set(row.tolist())) > 2 for row in steps)


def test_only_the_share_of_chains_jumps() -> None:
    assert PositionJumps(0.0, 1, CHECK, 500).draw([CHAIN], 16) is None
    drawn = PositionJumps(0.3, 1, CHECK, 500).draw([CHAIN] * 400, 16)
    assert drawn is not None
    assert 60 < sum(row[-1] > 15 for row in drawn.tolist()) < 160


def test_a_batch_as_wide_as_the_range_does_not_jump() -> None:
    drawn = PositionJumps(1.0, 1, CHECK, 16).draw([CHAIN], 16)
    assert drawn is not None
    assert drawn.tolist() == [list(range(16))]


def trained(folder: Path, settings: Settings) -> dict[str, torch.Tensor]:
    folder.mkdir()
    train(folder, settings)
    assert json.loads((folder / "train_log.json").read_text())["steps"] == settings.steps
    return load_file(folder / "model.safetensors")


def test_a_schedule_of_steps_gives_the_same_weights_again_from_where_it_resumes(
    tmp_path: Path,
) -> None:
    settings = Settings(
        steps=2,
        seed=5,
        threads=1,
        batch_tokens=600,
        resume=str(WEIGHTS),
        gap=0.5,
        max_share=0.3,
        smooth=True,
        long_share=0.1,
    )
    first, again = trained(tmp_path / "a", settings), trained(tmp_path / "b", settings)
    begun = load_file(WEIGHTS / "model.safetensors")
    assert first.keys() == begun.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, again[name])
        assert not torch.equal(tensor, begun[name])
        assert torch.allclose(tensor, begun[name], atol=0.05)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_the_second_task_has_its_share(share: float) -> None:
    def encode(text: str) -> list[int]:
        return list(text.encode())

    settings = Settings(max_share=share, resume="other weights", batch_tokens=3_000)
    batches = Batches(encode, Random(1), settings)
    prompts = [
        bytes(sample.token_ids[: sample.prompt_tokens]).decode()
        for _ in range(12)
        for sample in batches.next(0.5)
        if sample.prompt_tokens
    ]
    found = sum(TaskKind.MAX.value in prompt for prompt in prompts) / len(prompts)
    assert found == 0.0 if share == 0.0 else 0.3 < found < 0.7
