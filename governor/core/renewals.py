"""Renewals: which running requests' profiles no longer fit their progress. Renews nothing itself.

A profile lies on the clock: it says what a request will hold when, at the pace that the worker had
when it was made. A batch that grows slows everybody down, and then the sums let go of what is still
held (measured on a small pool: a fifth of it claimed for 23 requests that held half of it).
"""

from collections.abc import Iterator, Mapping
from heapq import heappop, heappush

from governor.core.pool import Pool
from governor.core.request import GovernedRequest, RequestState

# Checkpoints come at 16 tokens, then each time the output has grown by a quarter (session.py). A
# request is late after twice the tokens to the next one, at the pace of its profile.
_FIRST_CHECKPOINT_TOKENS = 16
_CHECKPOINT_GROWTH = 0.25
_LATE = 2
# A pace that has moved by more than this share puts the ends of old profiles and of fresh ones, and
# so their peaks, into different bins although they coincide.
_PACE_MOVED = 0.2


class Renewals:
    """Watches running requests. `most_us` is the longest time between two renewals of a lease."""

    def __init__(self, most_us: int) -> None:
        self._most_us = most_us
        self._due: list[tuple[int, str]] = []

    @property
    def next_us(self) -> int | None:
        """When the next one may be due."""
        return self._due[0][0] if self._due else None

    def watch(self, request: GovernedRequest, now_us: int) -> None:
        """A request runs from now on."""
        due_us = max(now_us + 1, request.renewed_us + self._patience_us(request))
        heappush(self._due, (due_us, request.arrived.request_id))

    def late(
        self, requests: Mapping[str, GovernedRequest], now_us: int
    ) -> Iterator[GovernedRequest]:
        """Requests that are slower than their profile, or whose lease is half over. Each must be
        renewed as it comes."""
        while self._due and self._due[0][0] <= now_us:
            _, request_id = heappop(self._due)
            request = requests.get(request_id)
            if request is None or request.state is not RequestState.RUNNING:
                continue
            if now_us - request.renewed_us >= self._patience_us(request):
                yield request
            self.watch(request, now_us)

    def _patience_us(self, request: GovernedRequest) -> int:
        growth = int(_CHECKPOINT_GROWTH * request.generated_tokens)
        tokens = max(_FIRST_CHECKPOINT_TOKENS, growth)
        return min(self._most_us, _LATE * tokens * request.us_per_token)


def repaced(pool: Pool, requests: Mapping[str, GovernedRequest]) -> list[GovernedRequest]:
    """Running requests whose profiles were made at a clearly different pace than the pool's."""
    pace = pool.view.us_per_token
    running = [requests[name] for name in pool.holds if name in requests]
    return [
        request
        for request in running
        if request.state is RequestState.RUNNING
        and abs(pace - request.us_per_token) > _PACE_MOVED * request.us_per_token
    ]
