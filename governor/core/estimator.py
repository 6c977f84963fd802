"""RunningEstimator: forecasts from the lengths of past requests, per (model, effort).

Censored lengths (landed, cut, cancelled) count as "at least this long". No clock, no I/O.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from governor.core.forecast import FORECAST_SCHEMA, GRID_TOKENS, Forecast, Survival
from governor.core.hazard import Ending, LengthTable, Prior
from governor.core.outcomes import Cause, WrapUpReason

ARTEFACT = "running-quantile/1"
STATE_SCHEMA = "governor.estimator/v1"

# Output of DeepSeek-R1 in production: p50 807, p90 4,165 tokens, median reasoning share 0.79
# (ServeGen, arXiv 2505.09999). Thinking gets the share, the answer the rest, both log-normal.
_OUTPUT_P50_TOKENS, _OUTPUT_P90_TOKENS, _REASONING_SHARE = 807.0, 4165.0, 0.79
_Z90 = 1.2815515655446004
# Median thinking by effort word, relative to that. An assumption, not a measurement: the words are
# steps of two, as the default budgets are. Evidence replaces it after a few requests.
_EFFORT_SCALE: tuple[tuple[str | None, float], ...] = (
    *((None, 1.0), ("none", 0.25), ("minimal", 0.25), ("low", 0.5), ("medium", 1.0)),
    *(("high", 2.0), ("xhigh", 4.0), ("max", 4.0)),
)
# The share of requests that loop, before any evidence. An assumption (DESIGN §4 reckons with 1 %).
_LOOP_PRIOR = 0.01
# The prior counts as this many requests: after 100 it moves no quantile below the 96th.
_PRIOR_WEIGHT = 4.0
# Half of what is known is from the last 350 requests of the pair.
_DECAY = 0.998
# With less evidence than this many requests a forecast is called a fallback.
_LEAST_EVIDENCE = 8.0

_CENSORING = frozenset(
    {
        WrapUpReason.BUDGET_SPENT,
        WrapUpReason.DEADLINE,
        WrapUpReason.PRESSURE,
        WrapUpReason.OPERATOR,
    }
)


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


def thinking_ending(observation: Observation) -> Ending | None:
    """How thinking ended; None where the length says nothing of the natural length.

    Converged and low-value landings are left out: they pick requests by how near their end is, so
    counting them as censored would bias the estimate (DESIGN §5).
    """
    if observation.thinking_tokens is None or observation.cause is Cause.REFUSED:
        return None
    if observation.wrap_up_reason is WrapUpReason.LOOP:
        return Ending.LOOP
    if observation.wrap_up_reason in _CENSORING:
        return Ending.CENSORED
    if observation.wrap_up_reason is not None:
        return None
    if observation.cause is Cause.COMPLETED or observation.answer_tokens > 0:
        return Ending.NATURAL
    return Ending.CENSORED if observation.thinking_tokens > 0 else None


def answer_ending(observation: Observation) -> Ending | None:
    """How the answer ended; None where none was begun by a request that did not complete."""
    if observation.cause in (Cause.COMPLETED, Cause.WRAPPED_UP):
        return Ending.NATURAL
    return Ending.CENSORED if observation.answer_tokens > 0 else None


class _Key:
    """What is known of one (model, effort): two tables and the forecast made from them."""

    __slots__ = ("answer", "forecast", "thinking")

    def __init__(self) -> None:
        self.thinking = LengthTable()
        self.answer = LengthTable()
        self.forecast: Forecast | None = None


class RunningEstimator:
    """Keeps at most `max_keys` (model, effort) pairs; the least recently used leaves first.

    Requests with thinking switched off belong under the effort word "none", apart from those that
    think.
    """

    def __init__(self, max_keys: int = 512, decay: float = _DECAY) -> None:
        if max_keys < 1 or not 0.0 < decay <= 1.0:
            raise ValueError(f"need max_keys >= 1 and 0 < decay <= 1, got {max_keys}, {decay}")
        self._max_keys = max_keys
        self._decay = decay
        self._keys: OrderedDict[tuple[str, str | None], _Key] = OrderedDict()
        self._priors = {effort: _thinking_prior(scale) for effort, scale in _EFFORT_SCALE}
        self._answer_prior = _answer_prior()
        self._unknown = {effort: self._estimate(_Key(), effort) for effort in self._priors}

    def forecast(self, model: str, effort: str | None) -> Forecast:
        """The forecast for one request; the prior of the effort word for an unknown pair."""
        key = self._keys.get((model, effort))
        if key is None:
            return self._unknown.get(effort, self._unknown[None])
        self._keys.move_to_end((model, effort))
        if key.forecast is None:
            key.forecast = self._estimate(key, effort)
        return key.forecast

    def learn(self, observation: Observation) -> None:
        """Take in one ended request. Raises ValueError for a negative count."""
        if observation.answer_tokens < 0 or (observation.thinking_tokens or 0) < 0:
            raise ValueError(f"token counts are >= 0: {observation}")
        thinking, answer = thinking_ending(observation), answer_ending(observation)
        if thinking is None and answer is None:
            return
        name = (observation.model, observation.effort)
        key = self._keys.setdefault(name, _Key())
        self._keys.move_to_end(name)
        if thinking is not None and observation.thinking_tokens is not None:
            key.thinking.add(observation.thinking_tokens, thinking, self._decay)
        if answer is not None:
            key.answer.add(observation.answer_tokens, answer, self._decay)
        key.forecast = None
        if len(self._keys) > self._max_keys:
            self._keys.popitem(last=False)

    def state(self) -> dict[str, Any]:
        """Everything learned, as plain JSON values, least recently used pair first."""
        return {
            "schema": STATE_SCHEMA,
            "max_keys": self._max_keys,
            "decay": self._decay,
            "keys": [
                {
                    "model": model,
                    "effort": effort,
                    "thinking": key.thinking.state(),
                    "answer": key.answer.state(),
                }
                for (model, effort), key in self._keys.items()
            ],
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "RunningEstimator":
        """The estimator that `state` was taken from. Raises ValueError for anything else."""
        try:
            if state["schema"] != STATE_SCHEMA:
                raise ValueError(f"estimator state has schema {state['schema']!r}")
            estimator = cls(state["max_keys"], state["decay"])
            for entry in state["keys"]:
                key = _Key()
                key.thinking = LengthTable.from_state(entry["thinking"])
                key.answer = LengthTable.from_state(entry["answer"])
                estimator._keys[(str(entry["model"]), entry["effort"])] = key
        except (KeyError, TypeError) as error:
            raise ValueError(f"not an estimator state: {error!r}") from error
        return estimator

    def _estimate(self, key: _Key, effort: str | None) -> Forecast:
        prior = self._priors.get(effort, self._priors[None])
        natural, loop_probability = key.thinking.estimate(prior)
        answer, _ = key.answer.estimate(self._answer_prior)
        return Forecast(
            schema=FORECAST_SCHEMA,
            artefact=ARTEFACT,
            natural=natural,
            answer=answer,
            loop_probability=loop_probability,
            fallback=max(key.thinking.evidence, key.answer.evidence) < _LEAST_EVIDENCE,
        )


def _log_normal(p50_tokens: float, p90_tokens: float) -> Survival:
    mean, sigma = math.log(p50_tokens), math.log(p90_tokens / p50_tokens) / _Z90
    scale = sigma * math.sqrt(2.0)
    return Survival(tuple(math.erfc((math.log(t) - mean) / scale) / 2.0 for t in GRID_TOKENS))


def _thinking_prior(effort_scale: float) -> Prior:
    share = _REASONING_SHARE * effort_scale
    survival = _log_normal(_OUTPUT_P50_TOKENS * share, _OUTPUT_P90_TOKENS * share)
    return Prior(survival, _LOOP_PRIOR, _PRIOR_WEIGHT)


def _answer_prior() -> Prior:
    share = 1.0 - _REASONING_SHARE
    survival = _log_normal(_OUTPUT_P50_TOKENS * share, _OUTPUT_P90_TOKENS * share)
    return Prior(survival, 0.0, _PRIOR_WEIGHT)
