"""LoopDetector: finds a stream that repeats one block, exactly, in bounded time per token. Judges
neither near-variants nor meaning, and decides nothing: a verdict is evidence for the session.

How: tokens go into a bounded window. The hash of the last `GRAM_TOKENS` tokens is looked up in a
small table of earlier positions; a hit proposes a period p, which is verified in the window, so
that a collision can never look like a loop. From then on the run r of tokens equal to the token p
before them is counted, one comparison for each token. The verdict falls when r reaches
max(min_run_tokens, (min_repeats - 1) * p): the block has been seen min_repeats times. That is a
loop detection delay of min_repeats periods from onset, the least possible for exact evidence.
"""

import re
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from zlib import crc32

from governor.core.errors import PolicyInvalid, UpstreamProtocolError

GRAM_TOKENS = 16
# Every eighth position is remembered and every position looked up, so a repeated block is found
# within a few tokens of its second copy. Slots are overwritten by newer positions.
_REMEMBER_EVERY = 8
_SLOTS = 2048
_TRIM_TOKENS = 4096
# Tokens that verification may compare for each token pushed, on average: bounds the cost of text
# that is built to look like a loop again and again.
_CREDIT_PER_TOKEN = 64
_CREDIT_LIMIT = 1 << 16
_NEVER = 1 << 62
# A unit of text: a word, blanks, or one character of anything else, words of over 16 letters
# included: cut elsewhere than at their ends, they would repeat with a multiple of the period.
_UNIT = re.compile(
    r"[A-Za-z\u00c0-\u024f]{1,16}(?![A-Za-z\u00c0-\u024f])|[^\S\n]{1,16}(?![^\S\n])|.", re.DOTALL
)
_MAY_GO_ON = re.compile(r"[A-Za-z\u00c0-\u024f]|[^\S\n]")


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """What counts as a loop.

    `min_repeats` copies of a block, and at least `min_run_tokens` repeated tokens. A block of fewer
    than `min_distinct_tokens` different tokens (separators, dots, table rules) needs
    `low_diversity_factor` times as long a run. Periods up to `max_period_tokens` (at most 32,768)
    are seen: 43 % of the real exact loops that we have repeat a block of over 1,500 characters.
    """

    min_repeats: int = 3
    min_run_tokens: int = 48
    max_period_tokens: int = 8192
    min_distinct_tokens: int = 12
    low_diversity_factor: int = 4

    def __post_init__(self) -> None:
        if self.min_repeats < 2 or self.min_run_tokens < GRAM_TOKENS:
            raise PolicyInvalid(f"a loop is 2 copies and {GRAM_TOKENS} tokens at the least")
        if not 1 <= self.max_period_tokens <= 32_768:
            raise PolicyInvalid("max_period_tokens must lie in 1..32768")

    def needed_run(self, period_tokens: int) -> int:
        """How many repeated tokens make a loop of that period, guards aside."""
        return max(self.min_run_tokens, (self.min_repeats - 1) * period_tokens)


@dataclass(frozen=True, slots=True)
class LoopVerdict:
    """One onset of a loop. Positions count tokens (text units under `push_text`) since the reset.

    `onset_position` is the first token of the first copy, `at_position` the token on which the
    verdict fell, `run_tokens` how many tokens until then equalled the one a period earlier.
    """

    period_tokens: int
    run_tokens: int
    onset_position: int
    at_position: int
    kind: str = "exact_cycle"


# Given the repeated block, by what factor the run must be longer than usual; 1 is no objection.
# Asked once for each run that is long enough otherwise.
LoopGuard: TypeAlias = Callable[[Sequence[int], LoopSettings], int]


def low_diversity(block: Sequence[int], settings: LoopSettings) -> int:
    """The guard against separator lines, ellipses and the like."""
    few = len(set(block)) < settings.min_distinct_tokens
    return settings.low_diversity_factor if few else 1


class LoopDetector:
    """Feed one stream by `push` (token ids) or `push_text`, not both without a `reset` between.

    State: the window, an array of up to 3 * max_period_tokens + 4,096 32-bit ids (112 KiB at the
    defaults, growing with the stream), the table (4 KiB), and a few integers.
    """

    __slots__ = (
        "_base",
        "_credit",
        "_guarded",
        "_guards",
        "_need",
        "_period",
        "_run",
        "_settings",
        "_slots",
        "_tail",
        "_window",
    )

    def __init__(
        self, settings: LoopSettings | None = None, guards: tuple[LoopGuard, ...] = (low_diversity,)
    ) -> None:
        self._settings = settings or LoopSettings()
        self._guards = guards
        self.reset()

    def reset(self) -> None:
        """Forget the stream; positions start again at 0."""
        self._window = array("I")
        self._slots = array("H", bytes(2 * _SLOTS))
        self._base = 0
        self._credit = 0
        self._tail = ""
        self._follow(0, 0)

    def push_text(self, text: str) -> LoopVerdict | None:
        """Take text of a stream without token ids: words and characters stand for tokens, by a
        hash that is the same in every process. A word at the end of `text` may go on and waits for
        the next call, so that the cut into calls makes no difference."""
        units = _UNIT.findall(self._tail + text)
        self._tail = ""
        if units and _MAY_GO_ON.match(units[-1]):
            self._tail = units.pop()
        return self.push([crc32(unit.encode("utf-8", "surrogatepass")) for unit in units])

    def push(self, token_ids: Sequence[int]) -> LoopVerdict | None:
        """Take the next tokens. Gives the first onset among them, once for each run: a loop that
        goes on says nothing more. Raises UpstreamProtocolError for what is no token id."""
        try:
            fresh = array("I", token_ids)
        except (OverflowError, TypeError) as error:
            raise UpstreamProtocolError(f"not a token id: {error}") from error
        verdict: LoopVerdict | None = None
        for start in range(0, len(fresh), _TRIM_TOKENS):
            found = self._take(fresh[start : start + _TRIM_TOKENS])
            verdict = verdict or found
        return verdict

    def _take(self, fresh: "array[int]") -> LoopVerdict | None:
        window, slots = self._window, self._slots
        longest = self._settings.max_period_tokens
        if len(window) + len(fresh) > 3 * longest + _TRIM_TOKENS:
            del window[:_TRIM_TOKENS]
            self._base += _TRIM_TOKENS
        base, end = self._base, len(window)
        window.extend(fresh)
        self._credit = min(self._credit + _CREDIT_PER_TOKEN * len(fresh), _CREDIT_LIMIT)
        verdict: LoopVerdict | None = None
        for token in fresh:
            end += 1
            period = self._period
            if period:
                if window[end - 1 - period] == token:
                    self._run += 1
                else:
                    self._follow(0, 0)
            if end >= GRAM_TOKENS:
                position = base + end
                slot = crc32(window[end - GRAM_TOKENS : end]) & (_SLOTS - 1)
                distance = (position - slots[slot]) & 0xFFFF
                if position % _REMEMBER_EVERY == 0:
                    slots[slot] = position & 0xFFFF
                if (
                    0 < distance <= longest
                    and distance + GRAM_TOKENS <= end
                    and self._need != _NEVER
                    and window[end - 1 - distance] == token
                ):
                    self._propose(distance, end)
            if self._run >= self._need:
                found = self._judge(end)
                verdict = verdict or found
        return verdict

    def _follow(self, period: int, run: int) -> None:
        """Count the run of that period from here on; 0 is none."""
        self._period = period
        self._run = run
        self._need = self._settings.needed_run(period) if period else _NEVER - 1
        self._guarded = False

    def _propose(self, period: int, end: int) -> None:
        """Follow `period` if the window bears it out and it is nearer to a verdict."""
        least = GRAM_TOKENS
        if self._period:
            if period % self._period == 0:
                return
            missing = self._need - self._run
            least = max(least, self._settings.needed_run(period) - missing + 1)
        if least > self._credit or end - least - period < 0:
            return
        window = self._window
        if window[end - least] != window[end - least - period]:
            return
        self._credit -= least
        if window[end - least : end] != window[end - least - period : end - period]:
            return
        self._follow(period, self._extended(period, least, end, self._settings.needed_run(period)))

    def _extended(self, period: int, run: int, end: int, limit: int) -> int:
        """How far back the run of `period` reaches, at least `run`, at most `limit`."""
        window = self._window
        limit = min(limit, end - period)
        step = run
        while step and run < limit:
            step = min(step, limit - run)
            start = end - run - step
            if window[start : start + step] == window[start - period : start - period + step]:
                run += step
                step *= 2
            else:
                step //= 2
        return run

    def _judge(self, end: int) -> LoopVerdict | None:
        """The run is long enough: reduce it to its smallest period, hear the guards, speak."""
        longer = self._period
        run = self._extended(longer, self._run, end, end)
        period = self._smallest_period(longer, end)
        run += longer - period
        if not self._guarded:
            block = self._window[end - period : end]
            factor = max((guard(block, self._settings) for guard in self._guards), default=1)
            self._follow(period, run)
            self._guarded = True
            self._need *= factor
        self._period, self._run = period, run
        if run < self._need:
            return None
        self._need = _NEVER
        position = self._base + end
        return LoopVerdict(
            period_tokens=period,
            run_tokens=run,
            onset_position=position - run - period,
            at_position=position - 1,
        )

    def _smallest_period(self, period: int, end: int) -> int:
        """A block that is itself a power has a shorter period, which divides the longer."""
        window = self._window
        for shorter in range(1, period // 2 + 1):
            if (
                period % shorter == 0
                and window[end - 1] == window[end - 1 - shorter]
                and window[end - period : end - shorter] == window[end - period + shorter : end]
            ):
                return shorter
        return period
