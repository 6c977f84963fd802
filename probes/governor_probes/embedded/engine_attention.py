"""Attention on CPU over the paged cache of transformers' continuous batching (pinned 5.24.0).

The stock CPU path lets every query attend over the keys of the whole batch behind a mask, which
costs batch squared. Here a decode step gathers each request's own pages, and a prefill runs one
scaled-dot-product attention per sequence. Full attention only: no sliding window, no sinks.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NAME = "governor_paged_cpu"


class PagedCpuAttention:
    """Callable for transformers' attention interface; keeps the present step's index tensors."""

    def __init__(self) -> None:
        self._last_layer = -1
        self._pages = torch.empty(0)
        self._slots = torch.empty(0)
        self._mask = torch.empty(0)

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """Query (1, heads, tokens, dim) to output (1, tokens, heads, dim)."""
        groups = int(getattr(module, "num_key_value_groups", 1))
        if kwargs.get("block_table") is not None:
            return self._decode(module, query, key, value, scaling, groups, kwargs), None
        return self._prefill(query, key, value, scaling, groups, kwargs), None

    def _decode(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float | None,
        groups: int,
        kwargs: dict[str, Any],
    ) -> Tensor:
        k_pages, v_pages = kwargs["k_cache"], kwargs["v_cache"]
        layer = int(module.layer_idx)  # type: ignore[arg-type]
        if layer <= self._last_layer or self._last_layer < 0:
            self._index_step(kwargs["block_table"], kwargs["cu_seq_lens_k"], k_pages.shape[1])
        self._last_layer = layer
        _, page, heads, dim = k_pages.shape
        rows = query.shape[2]
        k_pages.view(-1, heads, dim).index_copy_(0, self._slots, key[0].transpose(0, 1))
        v_pages.view(-1, heads, dim).index_copy_(0, self._slots, value[0].transpose(0, 1))
        keys, values = (
            pages.reshape(-1, page * heads * dim)
            .index_select(0, self._pages)
            .view(rows, -1, heads, dim)
            .transpose(1, 2)
            for pages in (k_pages, v_pages)
        )
        out = F.scaled_dot_product_attention(
            query[0].transpose(0, 1).unsqueeze(2),
            keys,
            values,
            attn_mask=self._mask,
            scale=scaling,
            enable_gqa=groups > 1,
        )
        return out.squeeze(2).unsqueeze(0)

    def _index_step(self, block_table: Tensor, cu_seq_lens_k: Tensor, page: int) -> None:
        """Page list, write slots and length mask: the same for every layer of a step."""
        lengths = (cu_seq_lens_k[1:] - cu_seq_lens_k[:-1]).long()
        rows = lengths.shape[0]
        width = (int(lengths.max()) + page - 1) // page
        table = block_table[:rows, :width].clamp(min=0).long()
        self._pages = table.reshape(-1)
        last = lengths - 1
        self._slots = table.gather(1, (last // page).unsqueeze(1)).squeeze(1) * page + last % page
        beyond = torch.arange(width * page) >= lengths.unsqueeze(1)
        mask = torch.zeros(beyond.shape).masked_fill_(beyond, -torch.inf)
        self._mask = mask.view(rows, 1, 1, width * page)

    def _prefill(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float | None,
        groups: int,
        kwargs: dict[str, Any],
    ) -> Tensor:
        self._last_layer = -1
        q_ends, k_ends = kwargs["cu_seq_lens_q"].tolist(), kwargs["cu_seq_lens_k"].tolist()
        parts = []
        for i in range(len(q_ends) - 1):
            q = query[:, :, q_ends[i] : q_ends[i + 1]]
            k = key[:, :, k_ends[i] : k_ends[i + 1]]
            v = value[:, :, k_ends[i] : k_ends[i + 1]]
            past = k.shape[2] - q.shape[2]
            mask = None
            if past:
                ones = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
                mask = ones.tril(diagonal=past)
            parts.append(
                F.scaled_dot_product_attention(
                    q, k, v, attn_mask=mask, is_causal=mask is None, scale=scaling,
                    enable_gqa=groups > 1,
                )
            )  # fmt: skip
        return torch.cat(parts, dim=2).transpose(1, 2)
