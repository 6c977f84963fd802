"""Forecast: how long a request will think and answer, as survival functions on one fixed grid.

Values only. Who makes them (`governor.core.estimator`, or a trained predictor) is not known here.
"""

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

FORECAST_SCHEMA = "governor.forecast/v1"

# 32 geometric points, round(16 * 8192 ** (i / 31)). Written out, because the grid is part of the
# wire contract.
GRID_TOKENS: tuple[int, ...] = (
    *(16, 21, 29, 38, 51, 68, 92, 122, 164, 219, 293, 392, 524, 700, 936, 1252, 1675, 2240),
    *(2995, 4005, 5357, 7164, 9580, 12812, 17133, 22913, 30642, 40979, 54802, 73288, 98010),
    131072,
)

# `held` spreads the answer over one atom per this many grid cells: 8 atoms cost a quarter of 32 and
# keep the mean exact.
_CELLS_PER_ATOM = 4


@dataclass(frozen=True, slots=True)
class Survival:
    """S(t) = P(length > t) for whole token counts t, given at `GRID_TOKENS`.

    Between grid points S is linear, S(0) joins from 1, and beyond the last point S stays at its
    last value (nothing is known there). A length never exceeds `limit_tokens`: S is 0 from there
    on. Raises ValueError unless `values` are 32 non-increasing numbers in [0, 1].
    """

    values: tuple[float, ...]
    limit_tokens: int | None = None

    def __post_init__(self) -> None:
        if len(self.values) != len(GRID_TOKENS):
            raise ValueError(f"need {len(GRID_TOKENS)} survival values, got {len(self.values)}")
        previous = 1.0
        for value in self.values:
            if not 0.0 <= value <= previous:
                raise ValueError("survival values must be non-increasing and within [0, 1]")
            previous = value
        if self.limit_tokens is not None and self.limit_tokens < 0:
            raise ValueError(f"limit_tokens must be >= 0, got {self.limit_tokens}")

    def at(self, tokens: float) -> float:
        """P(length > tokens); 1 for a negative count."""
        if tokens < 0:
            return 1.0
        if self.limit_tokens is not None and tokens >= self.limit_tokens:
            return 0.0
        return self._unlimited_at(tokens)

    def quantile(self, q: float) -> int:
        """The least t with P(length <= t) >= q, for q in [0, 1].

        Where S never falls that far the answer is the limit, else the last grid point: read it as
        "at least". Raises ValueError for q outside [0, 1].
        """
        if not 0.0 <= q <= 1.0:
            raise ValueError(f"q must be within [0, 1], got {q}")
        allowed = 1.0 - q
        cell = bisect_left(self.values, -allowed, key=lambda value: -value)
        if cell == len(GRID_TOKENS):
            found = GRID_TOKENS[-1] if self.limit_tokens is None else self.limit_tokens
        elif allowed >= 1.0:
            found = 0
        else:
            start, s_start = self._cell_start(cell)
            drop = s_start - self.values[cell]
            share = (s_start - allowed) / drop if drop > 0.0 else 0.0
            exact = start + share * (GRID_TOKENS[cell] - start)
            found = max(0, math.ceil(exact - 1e-6))  # rounding must not add a token
        return found if self.limit_tokens is None else min(found, self.limit_tokens)

    def mean(self, limit_tokens: int | None = None) -> float:
        """E[min(length, limit)] in tokens, the exact sum of S(t) over t = 0 … limit - 1.

        Without any limit the sum ends at the last grid point.
        """
        total = 0.0
        for start, s_start, end, s_end in self._segments(limit_tokens):
            width = end - start
            total += width * (s_start + s_end) / 2 + (s_start - s_end) / 2
        return total

    def mean_area(self, prompt_tokens: int, limit_tokens: int | None = None) -> float:
        """Expected KV area E[s·o + o(o+1)/2] in token², the exact sum of S(t)·(s + t + 1)."""
        total = 0.0
        for start, s_start, end, s_end in self._segments(limit_tokens):
            width = end - start
            slope = (s_end - s_start) / width
            base = prompt_tokens + start + 1
            first = width * (width - 1) / 2
            second = first * (2 * width - 1) / 3
            total += width * s_start * base + (s_start + slope * base) * first + slope * second
        return total

    def given(self, elapsed_tokens: int) -> "Remaining":
        """What remains after `elapsed_tokens`, as a callable t → S(g + t) / S(g)."""
        return Remaining(self, elapsed_tokens)

    def truncated(self, limit_tokens: int | None) -> "Survival":
        """The same length, ended at `limit_tokens` at the latest; None changes nothing."""
        if limit_tokens is None:
            return self
        if self.limit_tokens is not None and self.limit_tokens <= limit_tokens:
            return self
        return Survival(self.values, limit_tokens)

    def _cell_start(self, cell: int) -> tuple[int, float]:
        return (GRID_TOKENS[cell - 1], self.values[cell - 1]) if cell else (0, 1.0)

    def _unlimited_at(self, tokens: float) -> float:
        cell = bisect_right(GRID_TOKENS, tokens)
        if cell == len(GRID_TOKENS):
            return self.values[-1]
        start, s_start = self._cell_start(cell)
        share = (tokens - start) / (GRID_TOKENS[cell] - start)
        return s_start + share * (self.values[cell] - s_start)

    def _segments(self, limit_tokens: int | None) -> list[tuple[int, float, int, float]]:
        """Linear pieces (start, S(start), end, S(end)) that cover [0, limit)."""
        limits = [limit for limit in (limit_tokens, self.limit_tokens) if limit is not None]
        limit = min(limits) if limits else GRID_TOKENS[-1]
        pieces = []
        start, s_start = 0, 1.0
        for end, s_end in zip(GRID_TOKENS, self.values, strict=True):
            if end >= limit:
                break
            pieces.append((start, s_start, end, s_end))
            start, s_start = end, s_end
        if limit > start:
            pieces.append((start, s_start, limit, self._unlimited_at(limit)))
        return pieces


@dataclass(frozen=True, slots=True)
class Remaining:
    """Survival of the tokens still to come, after `elapsed_tokens` (exact conditional, DESIGN §5).

    Where S(elapsed) is 0 nothing more is expected, and every value from t = 0 on is 0.
    """

    survival: Survival
    elapsed_tokens: int

    def __call__(self, tokens: float) -> float:
        if tokens < 0:
            return 1.0
        reached = self.survival.at(self.elapsed_tokens)
        return self.survival.at(self.elapsed_tokens + tokens) / reached if reached > 0.0 else 0.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is expected of one request before it starts.

    `natural` is the length of thinking if nothing ends it and it does not loop; `answer` the length
    of the answer; `loop_probability` the share of requests that never end thinking on their own.
    `artefact` names who made it. `fallback` is true where it rests on a prior and not on evidence
    of this kind of request.
    """

    schema: str
    artefact: str
    natural: Survival
    answer: Survival
    loop_probability: float
    fallback: bool


def held(
    forecast: Forecast,
    thinking_cap_tokens: int | None,
    answer_cap_tokens: int | None,
) -> Survival:
    """Survival of all output tokens that the request will hold in KV: thinking, then answer.

    `thinking_cap_tokens` is all that thinking may take, wrap-up and grace included
    (`BudgetGrant.held_thinking_tokens`). A looping request thinks until that cap; without a cap it
    never ends. Thinking and answer count as independent (weak correlation: ServeGen, 2505.09999).
    """
    limit = None
    if thinking_cap_tokens is not None and answer_cap_tokens is not None:
        limit = thinking_cap_tokens + answer_cap_tokens
    # From the limit on S is 0 by definition; the values there only shape the cell that it lies in,
    # and the last value below it keeps a certain length certain up to its end.
    points = GRID_TOKENS if limit is None else tuple(min(t, limit - 1) for t in GRID_TOKENS)
    totals = [0.0] * len(GRID_TOKENS)
    for weight, answer_tokens in _atoms(forecast.answer.truncated(answer_cap_tokens)):
        _add_shifted(totals, points, weight, answer_tokens, forecast, thinking_cap_tokens)
    values: list[float] = []
    previous = 1.0
    for total in totals:
        previous = min(previous, total)
        values.append(previous)
    return Survival(tuple(values), limit)


def _atoms(survival: Survival) -> list[tuple[float, float]]:
    """(probability, mean length) of a few cells that together are the whole distribution."""
    atoms = []
    start, s_start, above = 0, 1.0, 0.0  # `above`: the sum of S(t) from `start` on
    pieces = survival._segments(None)
    for index, (piece_start, s_piece, end, s_end) in enumerate(pieces, 1):
        above += (end - piece_start) * (s_piece + s_end) / 2 + (s_piece - s_end) / 2
        if index == len(pieces):
            s_end = 0.0  # what is left sits at the limit, or at the last grid point
        elif index % _CELLS_PER_ATOM:
            continue
        weight = s_start - s_end
        if weight > 0.0:
            atoms.append((weight, start + (above - (end - start) * s_end) / weight))
        start, s_start, above = end, s_end, 0.0
    return atoms or [(1.0, 0.0)]


def _add_shifted(
    totals: list[float],
    points: tuple[int, ...],
    weight: float,
    shift_tokens: float,
    forecast: Forecast,
    cap_tokens: int | None,
) -> None:
    """Add weight · P(thinking > t - shift) at `points` to `totals`, walking the grid once."""
    values, loops = forecast.natural.values, forecast.loop_probability
    ends_by = forecast.natural.limit_tokens
    cell, start, s_start = 0, 0, 1.0
    for index, tokens in enumerate(points):
        left = tokens - shift_tokens
        if left < 0.0:
            totals[index] += weight
            continue
        if cap_tokens is not None and left >= cap_tokens:
            return
        while cell < len(GRID_TOKENS) and GRID_TOKENS[cell] <= left:
            start, s_start = GRID_TOKENS[cell], values[cell]
            cell += 1
        survives = s_start
        if ends_by is not None and left >= ends_by:
            survives = 0.0
        elif cell < len(GRID_TOKENS):
            survives += (left - start) / (GRID_TOKENS[cell] - start) * (values[cell] - s_start)
        totals[index] += weight * (survives + (1.0 - survives) * loops)
