"""Jumps in the positions of training chains: long distances at the price of short chains.

RoPE (Su et al., 2021) knows distances only. A jump at the start of a pass shows the model the
distance to its prompt that a chain of thousands of tokens would have.
"""

from random import Random

import torch


class PositionJumps:
    """Draws position ids for batches; a `share` of the chains jumps, once or at several passes.

    `check_ids` are the tokens that end one pass and begin the next; positions stay below
    `longest`, which must not be less than the batch is wide.
    """

    def __init__(self, share: float, seed: int, check_ids: list[int], longest: int) -> None:
        self._share = share
        self._rng = Random(seed)
        self._check_ids = check_ids
        self._longest = longest

    def draw(self, chains: list[tuple[list[int], int]], width: int) -> torch.Tensor | None:
        """(chains, width) position ids, None where no chain of this run ever jumps.

        A chain is its token ids, padding left out, and the number of its prompt's tokens.
        """
        if self._share <= 0.0:
            return None
        positions = torch.arange(width).repeat(len(chains), 1)
        for row, (token_ids, prompt_tokens) in enumerate(chains):
            if self._rng.random() >= self._share:
                continue
            starts = self._pass_starts(token_ids, prompt_tokens)
            jumps = min(len(starts), self._rng.choice((1, 1, 2, 3)))
            room = max(0, self._longest - width)
            for at in self._rng.sample(starts, jumps):
                positions[row, at:] += self._rng.randint(0, room // jumps)
        return positions

    def _pass_starts(self, token_ids: list[int], prompt_tokens: int) -> list[int]:
        check = self._check_ids
        later = [
            at + len(check)
            for at in range(prompt_tokens, len(token_ids) - len(check))
            if token_ids[at : at + len(check)] == check
        ]
        return [prompt_tokens, *later]
