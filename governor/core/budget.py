"""How much a request may think: one precedence table from demand, policy and forecast to a grant.

The table is documented in docs/budgets.md; its properties are tests. Nothing here enforces a
budget.
"""

import math
from dataclasses import dataclass

from governor.core.demand import Demand, ThinkingAsk
from governor.core.forecast import Forecast
from governor.core.outcomes import GrantReason, Strictness
from governor.core.policy import LandingPolicy, TenantPolicy
from governor.core.units import us_from_s

# Below about 14 % of the natural length thinking spills into the answer instead of ending
# (public measurement on two models, jundot/omlx PR #1812: 13 of 30 runs at 5-11 %, 0 of 20 above).
SAFE_CUT_FRACTION = 0.14
# The answer reserve when nobody states one: the forecast's 95th percentile, at least this many
# tokens, and never more than this share of the room: half of it where the forecast rests on
# evidence, an eighth where it is a prior only, which is wide and would leave nothing to think.
LEAST_ANSWER_RESERVE_TOKENS = 32
_RESERVE_SHARE_BY_EVIDENCE = 2
_RESERVE_SHARE_BY_PRIOR = 8
# With grace inside the budget, the search for a boundary may take this share of it at most, so that
# a small budget is not spent on waiting for a newline.
_INSIDE_GRACE_SHARE = 4

_ORDER = (Strictness.HINT, Strictness.CAP, Strictness.PROVEN)


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
    if min(wrap_up_tokens, price, demand.prompt_tokens) < 0:
        raise ValueError("wrap_up_tokens, price and prompt_tokens must be >= 0")
    ask, landing = demand.ask, policy.landing
    client = _clients_line(ask, policy)
    deadline = _deadline(demand, policy)
    room = _room_line(demand, max_model_len, us_per_token, deadline, now_us)
    strictness = max(ask.strictness or policy.strictness, policy.strictness, key=_ORDER.index)
    reserve = _answer_reserve(ask, policy, forecast, room.tokens)
    floor = None
    if not forecast.fallback:
        floor = round(safe_cut_fraction * forecast.natural.quantile(0.5))
    unlanded = unlanded_draw < landing.unlanded_share
    if client.tokens == 0:
        line = _Line(0, GrantReason.THINKING_OFF)
    elif not (demand.thinks and demand.landable and landing.enabled):
        line = _Line(None, GrantReason.NOT_GOVERNED)
        reserve, wrap_up_tokens, floor = 0, 0, None
    else:
        own = _policys_line(ask, policy, forecast, price, unlanded)
        if own.tokens is not None and floor is not None and own.tokens < floor:
            own = _Line(floor, GrantReason.SAFE_CUT_FLOOR)
        within = _thinking_within(room.tokens, reserve, wrap_up_tokens, strictness, landing)
        line = _lowest(own, client, _Line(within, room.reason))
        if line.tokens and strictness is not Strictness.HINT and line.tokens <= wrap_up_tokens:
            line = _Line(0, GrantReason.THINKING_OFF)
    off = line.tokens == 0
    return BudgetGrant(
        thinking_tokens=line.tokens,
        grace_tokens=_grace(line, wrap_up_tokens, strictness, landing),
        wrap_up_tokens=0 if off else wrap_up_tokens,
        answer_reserve_tokens=reserve,
        completion_tokens=demand.max_completion_tokens,
        reason=line.reason,
        strictness=strictness,
        asked_tokens=client.tokens,
        floor_tokens=floor,
        thinking_off=off,
        unlanded=unlanded,
    )


@dataclass(frozen=True, slots=True)
class _Line:
    """A budget, None for none, and the line of the table that set it."""

    tokens: int | None
    reason: GrantReason


def _is_lower(line: _Line, than: _Line, *, at_a_tie: bool = False) -> bool:
    if line.tokens is None:
        return False
    if than.tokens is None or line.tokens < than.tokens:
        return True
    return at_a_tie and line.tokens == than.tokens


def _lowest(own: _Line, client: _Line, fit: _Line) -> _Line:
    """Policy's line, the client's and the room's; of equal ones the client's is named."""
    line = client if _is_lower(client, own, at_a_tie=True) else own
    return fit if _is_lower(fit, line) else line


def _clients_line(ask: ThinkingAsk, policy: TenantPolicy) -> _Line:
    """The client's number, else its effort word's; a number wins, being the more exact."""
    if ask.budget_tokens is not None:
        return _Line(max(0, ask.budget_tokens), GrantReason.CLIENT_BUDGET)
    if ask.effort is not None:
        return _Line(policy.tokens_for_effort(ask.effort), GrantReason.CLIENT_EFFORT)
    return _Line(None, GrantReason.UNLIMITED)


def _policys_line(
    ask: ThinkingAsk, policy: TenantPolicy, forecast: Forecast, price: float, unlanded: bool
) -> _Line:
    """Default and price, lifted to the client's minimum, then the policy maximum."""
    line = _Line(None, GrantReason.UNLIMITED)
    known_effort = any(word == ask.effort for word, _ in policy.effort_tokens)
    if not unlanded:
        if ask.budget_tokens is None and not known_effort:
            line = _Line(policy.default_budget_tokens, GrantReason.POLICY_DEFAULT)
        if price > 0.0:
            priced = _Line(forecast.natural.quantile(1.0 / (1.0 + price)), GrantReason.PRICE)
            line = priced if _is_lower(priced, line) else line
        if line.tokens is not None and ask.min_tokens is not None:
            line = _Line(max(line.tokens, ask.min_tokens), line.reason)
    maximum = _Line(policy.max_budget_tokens, GrantReason.POLICY_MAXIMUM)
    if line.tokens is None and maximum.tokens is None:
        return _Line(None, GrantReason.UNLIMITED)
    return maximum if _is_lower(maximum, line) else line


def _deadline(demand: Demand, policy: TenantPolicy) -> tuple[int, GrantReason] | None:
    """The earliest moment by which the answer must have ended, and whose it is."""
    moments = []
    if demand.deadline_us is not None:
        moments.append((demand.deadline_us, GrantReason.CLIENT_DEADLINE))
    if demand.ask.budget_us is not None:
        by_budget = demand.arrived_us + demand.ask.budget_us
        moments.append((by_budget, GrantReason.CLIENT_DEADLINE))
    if policy.deadline_s is not None:
        by_policy = demand.arrived_us + us_from_s(policy.deadline_s)
        moments.append((by_policy, GrantReason.POLICY_DEADLINE))
    return min(moments, key=lambda moment: moment[0]) if moments else None


def _room_line(
    demand: Demand,
    max_model_len: int | None,
    us_per_token: int | None,
    deadline: tuple[int, GrantReason] | None,
    now_us: int,
) -> _Line:
    """Tokens that thinking and answer may take together: completion limit, context, time left."""
    room = _Line(demand.max_completion_tokens, GrantReason.COMPLETION_LIMIT)
    if max_model_len is not None:
        context = _Line(max(0, max_model_len - demand.prompt_tokens), room.reason)
        room = context if _is_lower(context, room) else room
    if deadline is not None and us_per_token is not None:
        moment_us, reason = deadline
        time_left = _Line(max(0, moment_us - now_us) // max(1, us_per_token), reason)
        room = time_left if _is_lower(time_left, room) else room
    return room


def _answer_reserve(
    ask: ThinkingAsk, policy: TenantPolicy, forecast: Forecast, room_tokens: int | None
) -> int:
    """The client's reserve, else the policy's, else one from the forecast; never above the room."""
    stated = ask.answer_reserve_tokens
    if stated is None:
        stated = policy.answer_reserve_tokens
    if stated is not None:
        stated = max(0, stated)
        return stated if room_tokens is None else min(stated, room_tokens)
    reserve = max(LEAST_ANSWER_RESERVE_TOKENS, forecast.answer.quantile(0.95))
    if room_tokens is None:
        return reserve
    share = _RESERVE_SHARE_BY_PRIOR if forecast.fallback else _RESERVE_SHARE_BY_EVIDENCE
    return min(reserve, room_tokens // share)


def _wanted_grace(tokens: int, landing: LandingPolicy) -> int:
    return max(landing.grace_tokens, math.ceil(landing.grace_fraction * tokens))


def _thinking_within(
    room_tokens: int | None,
    reserve_tokens: int,
    wrap_up_tokens: int,
    strictness: Strictness,
    landing: LandingPolicy,
) -> int | None:
    """The largest N that leaves the reserve, and with hint also grace and wrap-up, in the room."""
    if room_tokens is None:
        return None
    room = room_tokens - reserve_tokens
    if strictness is not Strictness.HINT:
        return max(0, room)
    room -= wrap_up_tokens
    tokens = min(room - landing.grace_tokens, math.floor(room / (1.0 + landing.grace_fraction)))
    while tokens > 0 and tokens + _wanted_grace(tokens, landing) > room:
        tokens -= 1  # at most a step or two: the closed form ignores rounding up
    return max(0, tokens)


def _grace(line: _Line, wrap_up_tokens: int, strictness: Strictness, landing: LandingPolicy) -> int:
    """Grace of this grant; inside the budget it is bounded by a share of what thinking gets."""
    if line.reason is GrantReason.NOT_GOVERNED or line.tokens == 0:
        return 0
    if line.tokens is None:
        return landing.grace_tokens
    wanted = _wanted_grace(line.tokens, landing)
    if strictness is Strictness.HINT:
        return wanted
    return min(wanted, max(0, line.tokens - wrap_up_tokens) // _INSIDE_GRACE_SHARE)
