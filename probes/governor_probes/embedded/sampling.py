"""Chooses the next token of every row at once. Forced tokens are the caller's business."""

from collections.abc import Sequence

import torch
from torch import Tensor

from governor_kernels.token_stats import TokenStats
from governor_probes.embedded.request import EngineRequest, Logprob


def choose_tokens(
    logits: Tensor, stats: TokenStats, requests: Sequence[EngineRequest], eos_ids: Sequence[int]
) -> Tensor:
    """Returns one token id per row, (rows,) int64.

    Greedy rows are the argmax. Sampled rows take one uniform draw of the request's own generator
    and invert the filtered cumulative distribution, so a seed gives the same draws in any batch. A
    non-finite row yields the argmax over its finite entries; its flag travels with the signals.
    """
    shaped = _shape(logits, requests, eos_ids)
    if shaped is logits:
        tokens = stats.top1_id
    else:
        tokens = shaped.argmax(-1)
    if bool(stats.non_finite.any()):
        safe = torch.nan_to_num(shaped, nan=-torch.inf, posinf=-torch.inf).argmax(-1)
        tokens = torch.where(stats.non_finite, safe, tokens)
    picked = [i for i, r in enumerate(requests) if r.sampling.temperature > 0.0]
    picked = [i for i in picked if requests[i].landing.forced_token is None]
    if not picked:
        return tokens
    chosen = _draw(shaped[picked], [requests[i] for i in picked])
    index = torch.tensor(picked)
    finite = ~stats.non_finite[index]
    return tokens.index_put((index[finite],), chosen[finite])


def _shape(logits: Tensor, requests: Sequence[EngineRequest], eos_ids: Sequence[int]) -> Tensor:
    """Applies penalties, and bans end tokens before `min_tokens`. Most batches need neither."""
    shaped = logits
    for row, request in enumerate(requests):
        sampling = request.sampling
        too_early = request.position < sampling.min_tokens
        if not too_early and not (sampling.penalised and request.counts):
            continue
        if shaped is logits:
            shaped = logits.clone()
        if sampling.penalised and request.counts:
            ids = torch.tensor(list(request.counts))
            counts = torch.tensor(list(request.counts.values()), dtype=shaped.dtype)
            shaped[row, ids] -= sampling.presence_penalty + sampling.frequency_penalty * counts
        if too_early:
            shaped[row, [*eos_ids, *sampling.stop_token_ids]] = -torch.inf
    return shaped


def _draw(rows: Tensor, requests: Sequence[EngineRequest]) -> Tensor:
    temperatures = torch.tensor([[r.sampling.temperature] for r in requests])
    draws = torch.tensor([[r.rng.random()] for r in requests], dtype=torch.float64)
    probs = torch.softmax((rows / temperatures).double(), dim=-1)
    filtered = any(r.sampling.top_p < 1.0 or r.sampling.top_k > 0 for r in requests)
    if not filtered:
        return _invert(probs, draws)
    probs, ids = probs.sort(dim=-1, descending=True)
    vocabulary = probs.shape[1]
    top_p = torch.tensor([[r.sampling.top_p] for r in requests], dtype=torch.float64)
    top_k = torch.tensor([[r.sampling.top_k or vocabulary] for r in requests])
    keep = (probs.cumsum(-1) - probs < top_p) & (torch.arange(vocabulary) < top_k)
    keep[:, 0] = True
    return ids.gather(1, _invert(probs * keep, draws).unsqueeze(1)).squeeze(1)


def _invert(probs: Tensor, draws: Tensor) -> Tensor:
    """Index of the first entry whose cumulative weight exceeds draw * total."""
    cumulative = probs.cumsum(-1)
    index = (cumulative <= draws * cumulative[:, -1:]).sum(-1)
    last = probs.shape[1] - 1 - (probs > 0).flip(-1).int().argmax(-1)
    return torch.minimum(index, last)


def token_logprobs(
    logits: Tensor, stats: TokenStats, tokens: Sequence[int], requests: Sequence[EngineRequest]
) -> dict[int, Logprob]:
    """Raw log-probabilities for the rows that ask for them, by row."""
    wanted = [i for i, r in enumerate(requests) if r.sampling.top_logprobs is not None]
    if not wanted:
        return {}
    index = torch.tensor(wanted)
    logp = logits[index] - stats.lse[index].unsqueeze(-1)
    chosen = logp.gather(1, torch.tensor([[tokens[i]] for i in wanted])).squeeze(1).tolist()
    most = max(requests[i].sampling.top_logprobs or 0 for i in wanted)
    top_values, top_ids = logp.topk(max(1, min(most, logp.shape[1])), dim=-1)
    values, ids = top_values.tolist(), top_ids.tolist()
    result: dict[int, Logprob] = {}
    for k, row in enumerate(wanted):
        n = requests[row].sampling.top_logprobs or 0
        result[row] = Logprob(chosen[k], tuple(zip(ids[k][:n], values[k][:n], strict=True)))
    return result
