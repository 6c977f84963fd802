"""What happens to each request when a step's logits are there: choose, observe, finish, report.

Knows nothing of the engine that computed the logits, nor of HTTP.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from governor.core.signals import SignalFlag
from governor_kernels.token_stats import TokenStats, token_stats
from governor_probes.embedded.metrics import WorkerMetrics
from governor_probes.embedded.request import (
    EngineRequest,
    Logprob,
    OutputBatch,
    OutputItem,
    SignalRow,
    SignalState,
)
from governor_probes.embedded.sampling import choose_tokens, token_logprobs
from governor_probes.embedded.settings import WorkerSettings
from governor_probes.embedded.vocabulary import Vocabulary
from governor_probes.landing_state import Channel, Phase


class TokenStep:
    """Gathers output batches and signal rows until the engine takes them with `take`."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        settings: WorkerSettings,
        metrics: WorkerMetrics,
        control_id: int | None,
    ) -> None:
        self._vocabulary = vocabulary
        self._settings = settings
        self._metrics = metrics
        self._eos = sorted(vocabulary.eos_ids)
        self._control = torch.tensor([control_id if control_id is not None else 0])
        self._out: list[tuple[EngineRequest, OutputBatch]] = []
        self._rows: list[SignalRow] = []

    def run(self, logits: Tensor, requests: Sequence[EngineRequest], now_s: float) -> list[int]:
        """Takes (rows, vocabulary) logits; returns the tokens that the engine must append.

        Requests that end here have their `finish_reason` set.
        """
        stats = token_stats(logits, self._control)
        picked = choose_tokens(logits, stats, requests, self._eos)
        values = _pack(picked, stats)
        tokens = [int(v[0]) for v in values]
        forced = [r.landing.forced_token for r in requests]
        tokens = [t if f is None else f for t, f in zip(tokens, forced, strict=True)]
        logprobs = token_logprobs(logits, stats, tokens, requests)
        for row, request in enumerate(requests):
            _, entropy, margin, bad = values[row]
            was_forced = forced[row] is not None
            self._accept(request, tokens[row], was_forced, logprobs.get(row), now_s)
            self._signal(request, tokens[row], was_forced, entropy, margin, bool(bad))
        self._metrics.tokens_generated(len(tokens))
        return tokens

    def end(self, request: EngineRequest, reason: str, error: str | None = None) -> None:
        """Ends a request between steps: cut by control, aborted, or failed."""
        request.finish_reason = reason
        self._flush_text(request)
        self._send(request, error)
        if request.signal.tokens or request.position:
            self._emit_row(request, margin=None, entropy_known=request.signal.entropy_count > 0)

    def take(self) -> tuple[list[tuple[EngineRequest, OutputBatch]], list[SignalRow]]:
        """Hands over what has gathered since the last call."""
        # Both lists go to another thread: they are handed over whole even when empty.
        out, rows = self._out, self._rows
        self._out, self._rows = [], []
        return out, rows

    def _accept(
        self,
        request: EngineRequest,
        token: int,
        was_forced: bool,
        logprob: Logprob | None,
        now_s: float,
    ) -> None:
        request.output_ids.append(token)
        if request.sampling.penalised:
            request.counts[token] = request.counts.get(token, 0) + 1
        text = request.decoder.feed(token)
        request.unresolved.append(OutputItem(token, Channel.ANSWER, text, logprob))
        for channel in request.landing.observe(token, text):
            self._resolve(request, channel)
        request.thinking_tokens = request.landing.thinking_tokens
        first = request.first_token_s is None
        self._metrics.token_timed(request, now_s)
        if request.finish_reason is None:
            self._check_end(request, token, was_forced)
        if request.finish_reason is not None:
            self._flush_text(request)
        request.unsent_tokens += 1
        if (
            first
            or request.finish_reason is not None
            or request.unsent_tokens >= self._settings.stream_interval
        ):
            self._send(request)

    def _resolve(self, request: EngineRequest, channel: Channel) -> None:
        item = request.unresolved.pop(0)
        if channel is Channel.TAG:
            self._release_held(request)
            request.unsent.append(item._replace(channel=channel))
            return
        request.text_channel = channel
        text = request.stop.feed(item.text) if request.stop.matched is None else ""
        request.unsent.append(item._replace(channel=channel, text=text))
        if request.stop.matched is not None and request.finish_reason is None:
            request.finish_reason = "stop"
            request.stop_reason = request.stop.matched

    def _release_held(self, request: EngineRequest) -> None:
        held = request.stop.flush()
        if held:
            request.unsent.append(OutputItem(None, request.text_channel, held, None))

    def _check_end(self, request: EngineRequest, token: int, was_forced: bool) -> None:
        sampling = request.sampling
        if not was_forced and token in self._vocabulary.eos_ids and not sampling.ignore_eos:
            request.finish_reason = "stop"
        elif not was_forced and token in sampling.stop_token_ids:
            request.finish_reason, request.stop_reason = "stop", token
        elif (
            request.position >= sampling.max_tokens
            or len(request.prompt_ids) + request.position >= self._settings.context_tokens
        ):
            request.finish_reason = "length"

    def _flush_text(self, request: EngineRequest) -> None:
        for channel in request.landing.finish():
            self._resolve(request, channel)
        request.thinking_tokens = request.landing.thinking_tokens
        rest = "" if request.stop.matched is not None else request.decoder.finish()
        rest = request.stop.flush() + rest
        if rest:
            request.unsent.append(OutputItem(None, request.text_channel, rest, None))

    def _send(self, request: EngineRequest, error: str | None = None) -> None:
        batch = OutputBatch(
            request.unsent,
            request.finish_reason,
            request.stop_reason,
            request.cached_tokens,
            error,
        )
        request.unsent, request.unsent_tokens = [], 0
        self._out.append((request, batch))

    def _signal(
        self,
        request: EngineRequest,
        token: int,
        was_forced: bool,
        entropy: float,
        margin: float,
        bad: bool,
    ) -> None:
        state = request.signal
        state.tokens.append(token)
        if bad:
            state.flags |= SignalFlag.NON_FINITE
        else:
            state.entropy_sum += entropy
            state.entropy_count += 1
        if was_forced and request.landing.landed:
            state.flags |= SignalFlag.LANDING
        if request.finish_reason is None and len(state.tokens) < self._settings.signal_interval:
            return
        thinking = request.landing.inside and request.think_end_id is not None and not bad
        self._emit_row(request, margin if thinking else None, state.entropy_count > 0)

    def _emit_row(self, request: EngineRequest, margin: float | None, entropy_known: bool) -> None:
        state, flags = request.signal, int(request.signal.flags)
        if request.landing.phase is Phase.FORCING:
            flags |= SignalFlag.LANDING
        if not request.landing.inside:
            flags |= SignalFlag.ANSWERING
        if request.finish_reason is not None:
            flags |= SignalFlag.FINISHED
        entropy = round(state.entropy_sum / state.entropy_count, 5) if entropy_known else None
        self._rows.append(
            SignalRow(
                request.rid,
                request.attempt,
                request.position,
                state.tokens,
                entropy,
                None if margin is None else round(margin, 5),
                None,
                flags,
            )
        )
        request.signal = SignalState()


def _pack(tokens: Tensor, stats: TokenStats) -> list[list[float]]:
    """One transfer for everything that Python reads per row."""
    margin = stats.top1 - stats.control_logprob[:, 0]
    columns = (tokens, stats.entropy, margin, stats.non_finite)
    values: list[list[float]] = torch.stack([c.double() for c in columns], dim=1).tolist()
    return values
