"""Per-row statistics of next-token logits in plain torch: the CPU twin of the probe kernels.

It reads logits and returns tensors; it samples nothing and keeps no state.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TokenStats:
    """One value per row unless said otherwise; nats. Rows with `non_finite` hold NaN and id -1.

    Attributes:
        lse: log-sum-exp of the row, float32.
        entropy: -sum p ln p, float32.
        varentropy: variance of -ln p under p, float32.
        top1, top2: the two largest log-probabilities; top2 is -inf where one token is unmasked.
        top1_id, top2_id: their token ids, int64.
        control_logprob: (rows, controls) log-probabilities of the control tokens.
        control_rank: (rows, controls) number of tokens with a larger logit, int64; 0 is the best.
        non_finite: bool; the row has a NaN or +inf, or every token is masked with -inf.
    """

    lse: Tensor
    entropy: Tensor
    varentropy: Tensor
    top1: Tensor
    top1_id: Tensor
    top2: Tensor
    top2_id: Tensor
    control_logprob: Tensor
    control_rank: Tensor
    non_finite: Tensor


def token_stats(logits: Tensor, control_ids: Tensor) -> TokenStats:
    """Computes all statistics of a batch of rows; -inf marks a masked token, which is legal.

    Args:
        logits: (rows, vocabulary), any floating type, computed in float32.
        control_ids: (controls,) int64 token ids; may be empty.

    Raises:
        ValueError: shapes are wrong, or a control id lies outside the vocabulary.
    """
    if logits.dim() != 2 or logits.shape[1] < 2:
        raise ValueError(f"logits must be (rows, vocabulary >= 2), got {tuple(logits.shape)}")
    if control_ids.dim() != 1:
        raise ValueError(f"control_ids must be one-dimensional, got {tuple(control_ids.shape)}")
    if control_ids.numel() and not 0 <= int(control_ids.min()) <= int(control_ids.max()) < int(
        logits.shape[1]
    ):
        raise ValueError("a control id lies outside the vocabulary")
    return _stats(logits.float(), control_ids)


def _stats(rows: Tensor, control_ids: Tensor) -> TokenStats:
    lse = torch.logsumexp(rows, dim=-1)
    # A NaN or +inf anywhere makes lse non-finite, and so does a row that is masked whole.
    bad = ~torch.isfinite(lse)
    logp = rows - lse.unsqueeze(-1)
    p = logp.exp()
    entropy = torch.special.entr(p).sum(-1)
    # entr is 0 where p is 0; the square needs the same care against 0 * inf.
    surprise = torch.where(p > 0, logp, 0.0)
    # Variance around the mean surprise, not E[x^2] - H^2, which cancels for near-certain rows.
    varentropy = (p * (surprise + entropy.unsqueeze(-1)).square()).sum(-1)
    # Orders are taken from the logits: subtracting lse rounds close logits together.
    top, top_id = torch.topk(rows, 2, dim=-1)
    top = top - lse.unsqueeze(-1)
    chosen = rows.index_select(1, control_ids)
    rank = (rows.unsqueeze(1) > chosen.unsqueeze(-1)).sum(-1)
    control = chosen - lse.unsqueeze(-1)
    nan = float("nan")
    flag = bad.unsqueeze(-1)
    top, top_id = top.masked_fill(flag, nan), top_id.masked_fill(flag, -1)
    return TokenStats(
        lse=lse.masked_fill(bad, nan),
        entropy=entropy.masked_fill(bad, nan),
        varentropy=varentropy.masked_fill(bad, nan),
        top1=top[:, 0],
        top1_id=top_id[:, 0],
        top2=top[:, 1],
        top2_id=top_id[:, 1],
        control_logprob=control.masked_fill(flag, nan),
        control_rank=rank.masked_fill(flag, -1),
        non_finite=bad,
    )
