"""RunningEstimator: forecasts from the lengths of past requests, per (model, effort).

Censored lengths (landed, cut, cancelled) count as "at least this long". No clock, no I/O.
"""

from dataclasses import dataclass
from typing import Any

from governor.core.forecast import Forecast
from governor.core.outcomes import Cause, WrapUpReason

ARTEFACT = "running-quantile/1"


@dataclass(frozen=True, slots=True)
class Observation:
    """What one ended request teaches. Token counts are exact counts of the worker.

    `thinking_tokens` excludes the wrap-up text; None where the request did not think (thinking off,
    or a model without a profile): nothing is learned of natural length then.
    """

    model: str
    effort: str | None
    thinking_tokens: int | None
    answer_tokens: int
    cause: Cause
    wrap_up_reason: WrapUpReason | None = None


class RunningEstimator:
    """Keeps at most `max_keys` (model, effort) pairs, the least recently used leaves first."""

    def __init__(self, max_keys: int = 512) -> None:
        self._max_keys = max_keys

    def forecast(self, model: str, effort: str | None) -> Forecast:
        """The forecast for one request; the prior of the effort word for an unknown pair."""
        raise NotImplementedError

    def learn(self, observation: Observation) -> None:
        """Take in one ended request."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """Everything learned, as plain JSON values."""
        raise NotImplementedError

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "RunningEstimator":
        """The estimator that `state` was taken from. Raises ValueError for anything else."""
        raise NotImplementedError
