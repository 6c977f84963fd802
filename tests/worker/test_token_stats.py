"""Token statistics in torch against a float64 reference; broken rows raise a flag, not a number."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from governor_kernels.token_stats import TokenStats, token_stats


def reference(row: torch.Tensor, controls: list[int]) -> dict[str, float | list[float]]:
    """Statistics of one row by their definitions, in float64 over the unmasked tokens."""
    values = [(i, float(v)) for i, v in enumerate(row.double()) if v > -math.inf]
    top = max(v for _, v in values)
    lse = top + math.log(sum(math.exp(v - top) for _, v in values))
    logp = {i: v - lse for i, v in values}
    entropy = -sum(math.exp(x) * x for x in logp.values())
    ranked = sorted(logp.values(), reverse=True)
    return {
        "lse": lse,
        "entropy": entropy,
        "varentropy": sum(math.exp(x) * (-x - entropy) ** 2 for x in logp.values()),
        "top1": ranked[0],
        "top2": ranked[1] if len(ranked) > 1 else -math.inf,
        "control": [logp.get(i, -math.inf) for i in controls],
        "rank": [sum(v > float(row[i]) for _, v in values) for i in controls],
    }


def check(stats: TokenStats, row: int, expected: dict[str, float | list[float]]) -> None:
    for name in ("lse", "entropy", "varentropy", "top1", "top2"):
        got = getattr(stats, name)[row].item()
        assert got == pytest.approx(expected[name], abs=2e-4, rel=1e-4), name
    assert stats.control_logprob[row].tolist() == pytest.approx(expected["control"], abs=2e-4)
    assert stats.control_rank[row].tolist() == expected["rank"]
    assert not stats.non_finite[row]


@pytest.mark.parametrize("vocabulary", [2, 303, 5000])
@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_rows_match_the_reference(vocabulary: int, scale: float) -> None:
    torch.manual_seed(vocabulary)
    logits = torch.randn(5, vocabulary) * scale
    controls = [0, vocabulary - 1]
    stats = token_stats(logits, torch.tensor(controls))
    for row in range(5):
        check(stats, row, reference(logits[row], controls))
        assert stats.top1_id[row].item() == logits[row].argmax().item()


@settings(max_examples=60)
@given(
    st.lists(
        st.one_of(st.floats(-50, 50, width=32), st.just(-math.inf)), min_size=3, max_size=12
    ).filter(lambda row: any(v > -math.inf for v in row))
)
def test_masked_tokens_are_legal(row: list[float]) -> None:
    logits = torch.tensor([row])
    check(token_stats(logits, torch.tensor([0])), 0, reference(logits[0], [0]))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_broken_row_is_flagged_and_its_neighbours_are_not(bad: float) -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 20)
    logits[1, 7] = bad
    stats = token_stats(logits, torch.tensor([2]))
    assert stats.non_finite.tolist() == [False, True, False]
    for name in ("lse", "entropy", "varentropy", "top1", "top2"):
        assert math.isnan(getattr(stats, name)[1].item()), name
    assert math.isnan(stats.control_logprob[1, 0].item())
    assert (stats.top1_id[1], stats.top2_id[1], stats.control_rank[1, 0]) == (-1, -1, -1)
    check(stats, 0, reference(logits[0], [2]))
    check(stats, 2, reference(logits[2], [2]))


def test_a_row_masked_whole_is_flagged() -> None:
    stats = token_stats(torch.full((1, 9), -math.inf), torch.tensor([0]))
    assert stats.non_finite.tolist() == [True]
    assert math.isnan(stats.entropy.item())


def test_uniform_and_certain_rows() -> None:
    stats = token_stats(torch.stack([torch.zeros(64), torch.eye(64)[3] * 1e4]), torch.tensor([3]))
    assert stats.entropy.tolist() == pytest.approx([math.log(64), 0.0], abs=1e-5)
    assert stats.varentropy.tolist() == pytest.approx([0.0, 0.0], abs=1e-6)
    assert stats.control_rank[:, 0].tolist() == [0, 0]


def test_empty_controls_and_batches_work_and_wrong_shapes_do_not() -> None:
    none = torch.empty(0, dtype=torch.int64)
    assert token_stats(torch.randn(2, 5), none).control_logprob.shape == (2, 0)
    assert token_stats(torch.randn(0, 5), torch.tensor([1])).entropy.shape == (0,)
    for logits, ids in (
        (torch.randn(5), none),
        (torch.randn(2, 5), torch.tensor([[1]])),
        (torch.randn(2, 5), torch.tensor([5])),
        (torch.randn(2, 5), torch.tensor([-1])),
    ):
        with pytest.raises(ValueError):
            token_stats(logits, ids)
