"""The crowd of the admission benchmark: who asks what, in which band, and what came of it. Pure.

16 requests of tenant `early` fill the KV pool first; 48 of `gold` (weight 2) and `silver` (weight
1) arrive into that full pool at once, half of them in band high and half in band low. So both
tenants and both bands wait from the start, and who goes first is the policy's doing alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from benchmarks.client import Reply
from benchmarks.problems import answered, right
from governor.core.keys import KEY_PREFIX, hash_of_key
from governor_probes.tiny_reasoner.task import Problem, make_problem

EARLY, GOLD, SILVER = "early", "gold", "silver"
WEIGHTS = {GOLD: 2, SILVER: 1}
BANDS = ("high", "low")
EARLY_REQUESTS = 16
LATE_REQUESTS = 48
REQUESTS = EARLY_REQUESTS + LATE_REQUESTS
# Up to 9 items thinking ends by itself after 27 to 120 tokens; from 10 on it goes on until it is
# landed: half of the load's tokens.
ITEMS = (4, 5, 6, 7, 8, 9, 9, 10, 11, 12)
BUDGET_TOKENS = 240
COMPLETION_TOKENS = 400
BLOCK_TOKENS = 16
# 16 requests of this load at their mean end, which is TYPICAL_BLOCKS blocks each; the benchmark
# measures that again and gives it as `typical_request_blocks`.
TYPICAL_BLOCKS = 9
POOL_BLOCKS = EARLY_REQUESTS * TYPICAL_BLOCKS
# The queue is long enough for all of them: what is lost is lost by admission, not by impatience.
POLICY = f"""
apiVersion: governor.dev/v1
defaults:
  priority: high
  budget: {BUDGET_TOKENS}
  answer_reserve: 16
  landing: {{grace: 16, unlanded_share: 0%}}
  queue: {{ttl: 300s}}
  output: {{governor_block: always}}
tenants:
  early: {{priority: critical, keys: ["KEY_OF_EARLY"]}}
  gold: {{weight: 2, keys: ["KEY_OF_GOLD"]}}
  silver: {{weight: 1, keys: ["KEY_OF_SILVER"]}}
"""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of the crowd. Band None: the tenant's own."""

    tenant: str
    band: str | None
    problem: Problem

    @property
    def headers(self) -> dict[str, str]:
        """The tenant's key and the band that the client asks for."""
        named = {"authorization": f"Bearer {key_of(self.tenant)}"}
        return named if self.band is None else {**named, "x-governor-priority": self.band}

    @property
    def body(self) -> dict[str, object]:
        """Greedy, with a limit on the output and no word on thinking."""
        return {
            "model": "tiny-reasoner",
            "messages": self.problem.messages,
            "temperature": 0,
            "max_completion_tokens": COMPLETION_TOKENS,
        }


@dataclass(frozen=True, slots=True)
class Served:
    """A request with its reply. `arrived_us` and `dispatched_us` are on the gateway's clock, from
    its decision record; None where it keeps none or the request was refused. `forecast_area` is
    the KV area (token²) that its tenant was charged when it was dispatched."""

    asked: Asked
    reply: Reply
    arrived_us: int | None
    dispatched_us: int | None
    forecast_area: int | None = None

    @property
    def lost(self) -> bool:
        """No whole stream with an answer in it."""
        return self.reply.status != 200 or not answered(self.reply)

    @property
    def right(self) -> bool:
        return right(self.asked.problem, self.reply)

    @property
    def wait_s(self) -> float | None:
        """Time in the gateway's queue."""
        if self.arrived_us is None or self.dispatched_us is None:
            return None
        return (self.dispatched_us - self.arrived_us) / 1e6

    @property
    def blocks(self) -> int:
        """KV blocks that it held at its end."""
        tokens = (self.reply.prompt_tokens or 0) + (self.reply.completion_tokens or 0)
        return -(-tokens // BLOCK_TOKENS)


def key_of(tenant: str) -> str:
    """The key of a tenant, of the form in which Governor issues keys."""
    return KEY_PREFIX + tenant.ljust(43, "0")


def policy_text() -> str:
    """The policy with the hashes of its tenants' keys."""
    text = POLICY
    for tenant in (EARLY, *WEIGHTS):
        text = text.replace(f"KEY_OF_{tenant.upper()}", hash_of_key(key_of(tenant)))
    return text


def crowd(seed: int) -> tuple[list[Asked], list[Asked]]:
    """The requests that fill the pool, and those that come into it, in the order of sending."""
    rng = Random(seed)
    early = [
        Asked(EARLY, None, make_problem(rng, ITEMS[i % len(ITEMS)])) for i in range(EARLY_REQUESTS)
    ]
    kinds = [(tenant, band) for tenant in WEIGHTS for band in BANDS]
    late = [
        Asked(tenant, band, make_problem(rng, ITEMS[i % len(ITEMS)]))
        for i in range(LATE_REQUESTS // len(kinds))
        for tenant, band in kinds
    ]
    rng.shuffle(late)
    return early, late


def without_end(tenant: str, seed: str) -> Iterator[Asked]:
    """Requests of one tenant, all of the first band, for as long as anybody draws them."""
    rng = Random(f"{tenant} {seed}")
    while True:
        yield Asked(tenant, BANDS[0], make_problem(rng, rng.choice(ITEMS)))
