"""LengthTable: decayed counts of ended, looped and censored lengths, and the survival they imply.

A discrete-hazard (Kaplan–Meier, life-table) estimate with two causes of ending on the forecast
grid. A censored length is at risk as far as it was seen, so it lengthens the estimate as it should
and never counts as an end.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf

from governor.core.forecast import GRID_TOKENS, Survival


class Ending(StrEnum):
    """What is known of how an observed length came to its end."""

    NATURAL = "natural"
    LOOP = "loop"
    CENSORED = "censored"


@dataclass(frozen=True, slots=True)
class Prior:
    """What is believed before any evidence, worth `weight` observed requests."""

    survival: Survival
    loop_probability: float
    weight: float


class LengthTable:
    """Counts per grid cell (g[i-1], g[i]]; every observation shrinks the older ones by `decay`."""

    __slots__ = ("at_risk", "ends", "loops")

    def __init__(self) -> None:
        self.ends = [0.0] * len(GRID_TOKENS)
        self.loops = [0.0] * len(GRID_TOKENS)
        self.at_risk = [0.0] * len(GRID_TOKENS)

    @property
    def evidence(self) -> float:
        """The decayed number of lengths taken in, censored ones included."""
        return self.at_risk[0]

    def state(self) -> dict[str, list[float]]:
        """The counts as plain JSON values."""
        return {
            "ends": list(self.ends),
            "loops": list(self.loops),
            "at_risk": list(self.at_risk),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Sequence[float]]) -> "LengthTable":
        """The table that `state` was taken from.

        Raises KeyError, TypeError or ValueError for anything else.
        """
        table = cls()
        table.ends = _counts(state["ends"])
        table.loops = _counts(state["loops"])
        table.at_risk = _counts(state["at_risk"])
        return table

    def add(self, tokens: int, ending: Ending, decay: float) -> None:
        """Take in one length. A censored one means "at least `tokens`"."""
        if decay < 1.0:
            self.ends = [count * decay for count in self.ends]
            self.loops = [count * decay for count in self.loops]
            self.at_risk = [count * decay for count in self.at_risk]
        cell = bisect_left(GRID_TOKENS, tokens)
        for passed in range(cell):
            self.at_risk[passed] += 1.0
        if cell == len(GRID_TOKENS):
            return  # longer than the grid: at risk everywhere, ended nowhere on it
        if ending is Ending.CENSORED:
            start = GRID_TOKENS[cell - 1] if cell else 0
            self.at_risk[cell] += (tokens - start) / (GRID_TOKENS[cell] - start)
            return
        self.at_risk[cell] += 1.0
        counts = self.ends if ending is Ending.NATURAL else self.loops
        counts[cell] += 1.0

    def estimate(self, prior: Prior) -> tuple[Survival, float]:
        """(survival of lengths that do not loop, probability of a loop), shrunk to the prior.

        The prior adds `weight` imaginary requests with its own lengths (a beta-Stacy prior), so
        without evidence the estimate is the prior, and without censoring it is the weighted mean of
        prior and empirical distribution.
        """
        alive, ended, looped = 1.0, 0.0, 0.0
        ended_by: list[float] = []
        before = 1.0
        for cell, after in enumerate(prior.survival.values):
            at_risk = self.at_risk[cell] + prior.weight * before
            prior_ends = prior.weight * (before - after)
            before = after
            if at_risk > 0.0:
                loops = self.loops[cell] + prior_ends * prior.loop_probability
                ends = self.ends[cell] + prior_ends * (1.0 - prior.loop_probability)
                looped += alive * loops / at_risk
                ended += alive * ends / at_risk
                alive *= max(0.0, 1.0 - (loops + ends) / at_risk)
            ended_by.append(ended)
        # Whoever outlives the grid is counted to the prior's share as long, and as looping.
        looped += alive * prior.loop_probability
        ends_at_all = ended + alive * (1.0 - prior.loop_probability)
        values: list[float] = []
        least = 1.0
        for ended_so_far in ended_by:
            share = ended_so_far / ends_at_all if ends_at_all > 0.0 else 0.0
            least = max(0.0, min(least, 1.0 - share))
            values.append(least)
        return Survival(tuple(values)), max(0.0, min(1.0, looped))


def _counts(plain: Sequence[float]) -> list[float]:
    counts = [float(count) for count in plain]
    if len(counts) != len(GRID_TOKENS) or not all(0.0 <= count < inf for count in counts):
        raise ValueError(f"need {len(GRID_TOKENS)} finite counts >= 0")
    return counts
