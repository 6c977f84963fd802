"""How much a request may think: one precedence table from demand, policy and forecast to a grant.

The table is documented in docs/budgets.md; its properties are tests. Nothing here enforces a
budget.
"""

import math
from dataclasses import dataclass

from governor.core.demand import Demand
from governor.core.forecast import Forecast
from governor.core.outcomes import GrantReason, Strictness
from governor.core.policy import TenantPolicy
from governor.core.units import us_from_s

# Below about 14 % of the natural length thinking spills into the answer instead of ending
# (public measurement on two models, jundot/omlx PR #1812: 13 of 30 runs at 5-11 %, 0 of 20 above).
SAFE_CUT_FRACTION = 0.14
# The answer reserve when nobody states one: the forecast's 95th percentile, at least this many
# tokens, and never more than one eighth of what the whole completion may take.
LEAST_ANSWER_RESERVE_TOKENS = 32
_RESERVE_SHARE_OF_COMPLETION = 8
# With grace inside the budget, the search for a boundary may take this share of it at most, so that
# a small budget is not spent on waiting for a newline.
_INSIDE_GRACE_SHARE = 4

_STRICTNESS_ORDER = (Strictness.HINT, Strictness.CAP, Strictness.PROVEN)


@dataclass(frozen=True, slots=True)
class BudgetGrant:
    """What one request was granted. Token counts are those of the worker's tokenizer.

    `thinking_tokens` is the visible cap N, None without one. With strictness cap or proven all
    reasoning tokens, wrap-up included, stay within N; with hint grace and wrap-up come after it.
    `completion_tokens` is the client's own limit, sent upstream as it came. `asked_tokens` is the
    client's number, or its effort word's. `floor_tokens` is the safe-cut floor where one is known.
    `unlanded` marks a request of the share that no early exit may land.
    """

    thinking_tokens: int | None
    grace_tokens: int
    wrap_up_tokens: int
    answer_reserve_tokens: int
    completion_tokens: int | None
    reason: GrantReason
    strictness: Strictness
    asked_tokens: int | None
    floor_tokens: int | None
    thinking_off: bool
    unlanded: bool = False

    @property
    def natural_tokens(self) -> int | None:
        """Reasoning tokens after which the wrap-up must have started; None without a budget."""
        if self.thinking_tokens is None:
            return None
        if self.thinking_off:
            return 0
        if self.strictness is Strictness.HINT:
            return self.thinking_tokens + self.grace_tokens
        return max(0, self.thinking_tokens - self.wrap_up_tokens)

    @property
    def boundary_tokens(self) -> int | None:
        """Reasoning tokens from which on the first boundary starts the wrap-up."""
        natural = self.natural_tokens
        return None if natural is None else max(0, natural - self.grace_tokens)

    @property
    def engine_budget_tokens(self) -> int | None:
        """The number for an engine's own budget field, which forces the wrap-up at that count.

        An engine does not wait for a boundary, so with hint it is N itself.
        """
        if self.strictness is Strictness.HINT and not self.thinking_off:
            return self.thinking_tokens
        return self.natural_tokens

    @property
    def held_thinking_tokens(self) -> int | None:
        """The most tokens that thinking can hold in KV, grace and wrap-up included."""
        natural = self.natural_tokens
        if natural is None or self.thinking_off:
            return natural
        return natural + self.wrap_up_tokens

    @property
    def below_floor(self) -> bool:
        """Whether thinking is on with less than the safe-cut floor (the client asked for less)."""
        return (
            self.thinking_tokens is not None
            and self.floor_tokens is not None
            and not self.thinking_off
            and self.thinking_tokens < self.floor_tokens
        )


def grant(
    demand: Demand,
    policy: TenantPolicy,
    forecast: Forecast,
    *,
    wrap_up_tokens: int,
    max_model_len: int | None,
    us_per_token: int | None,
    price: float,
    now_us: int,
    unlanded_draw: float,
    safe_cut_fraction: float = SAFE_CUT_FRACTION,
) -> BudgetGrant:
    """The budget of one request, at its dispatch.

    `wrap_up_tokens` is the length of the wrap-up text on this worker; `us_per_token` the worker's
    measured decode time (None: unknown, then a deadline sets no budget and is left to the clock of
    the session); `price` >= 0 the price of KV on the pool (0: idle, 1: policy budgets shrink to the
    median natural length); `unlanded_draw` in [0, 1) picks the share that stays unlanded.
    Raises ValueError for negative counts or price.
    """
    raise NotImplementedError(
        (
            demand,
            policy,
            forecast,
            wrap_up_tokens,
            max_model_len,
            math,
            us_per_token,
            price,
            now_us,
            unlanded_draw,
            us_from_s,
            safe_cut_fraction,
        )
    )
