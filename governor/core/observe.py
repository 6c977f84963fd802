"""Observer: what a stream says of itself. Counts tokens, follows the phase, watches for loops.

It never touches what is forwarded; a fault in here is counted and the stream goes on unchanged.
"""

import json
from typing import Any

from governor.core.chunks import Chunk, ChunkChoice, strip_fields
from governor.core.exchange import StreamPlan, StreamReport
from governor.core.loops import LoopDetector, LoopSettings, LoopVerdict
from governor.core.meter import TokenMeter
from governor.core.outcomes import Cause, LandingPath, WrapUpReason
from governor.core.session import (
    Action,
    AnswerLooped,
    AnswerSeen,
    LandingDue,
    ReasoningSeen,
    State,
    ThinkingSession,
)
from governor.core.signals import SignalJoin, SignalRow


class Observer:
    """Feeds the session with what chunks and signal rows show."""

    def __init__(self, plan: StreamPlan, session: ThinkingSession) -> None:
        self._plan = plan
        self._session = session
        self.meter = TokenMeter(plan.think_end_ids, signals_alive=plan.signals_expected)
        self._join = SignalJoin(plan.attempt)
        self._signals = plan.signals_expected
        settings = LoopSettings(
            min_repeats=plan.loops.min_repeats, min_run_tokens=plan.loops.min_run_tokens
        )
        self._loops = LoopDetector(settings)
        self._answer_loops = LoopDetector(settings)
        self.loop: LoopVerdict | None = None
        self.done_seen = False
        self.error: dict[str, Any] | None = None
        self.identity: dict[str, Any] = {}
        self.finish_reason: str | None = None
        self.faults = 0
        self._usage: tuple[int, int | None, int, int | None] | None = None
        self._answer_characters = 0
        self._tool_calls = 0
        self._first_token_us: int | None = None

    @property
    def complete(self) -> bool:
        """Whether the worker finished what it had to say."""
        return self.done_seen or self.finish_reason is not None or self.error is not None

    def signals_lost(self) -> None:
        """No more rows will come: loops are watched in the text from here on."""
        if self._signals:
            self._signals = False
            self.meter.signals_lost()
            self._loops.reset()
            self._answer_loops.reset()

    def stripped(self, raw: bytes) -> bytes:
        """The event's bytes without the members that the client did not ask for."""
        return strip_fields(raw, self._plan.strip) if self._plan.strip else raw

    def chunk(self, data: bytes, now_us: int) -> tuple[Chunk | None, tuple[Action, ...]]:
        """Take one event's JSON. (None, ()) when it cannot be decoded: the fault is counted."""
        try:
            chunk = self._plan.decode(data)
            return chunk, self._take(chunk, now_us)
        except Exception:
            # Whatever goes wrong in observing, a malformed chunk or a fault of ours, must not
            # break the client's stream (DESIGN §12): it passes unchanged and is counted.
            self.faults += 1
            return None, ()

    def _take(self, chunk: Chunk, now_us: int) -> tuple[Action, ...]:
        if not self.identity and chunk.id:
            self.identity = {"id": chunk.id, "created": chunk.created, "model": chunk.model}
        if chunk.error is not None:
            self.error = chunk.error
        if chunk.governor_landing is not None and chunk.governor_landing.get("landed_by"):
            # The worker's word at the end of the stream; a signal row may be too late for it.
            self._session.note_landed_by_engine(WrapUpReason.BUDGET_SPENT)
        actions: tuple[Action, ...] = ()
        usage = chunk.usage
        if usage is not None:
            self._usage = (
                usage.prompt_tokens or 0,
                usage.cached_tokens,
                usage.completion_tokens or 0,
                usage.reasoning_tokens,
            )
        for choice in chunk.choices:
            if choice.index == 0:
                completion = usage.completion_tokens if usage is not None else None
                actions += self._choice(choice, completion, now_us)
        return actions

    def _choice(
        self, choice: ChunkChoice, completion_tokens: int | None, now_us: int
    ) -> tuple[Action, ...]:
        if choice.finish_reason is not None:
            self.finish_reason = choice.finish_reason
        delta = choice.delta
        reasoning, answer, calls = "", choice.text or "", 0
        if delta is not None:
            reasoning = delta.reasoning or delta.reasoning_content or ""
            answer += delta.content or ""
            calls = sum(1 for call in delta.tool_calls or () if call.get("id"))
            if delta.tool_calls:
                answer += " "
        ids = choice.token_ids or []
        if not reasoning and not answer and not ids:
            return ()
        if self._first_token_us is None:
            self._first_token_us = now_us
        has_answer = bool(answer)
        self._answer_characters += len(answer) if not (delta and delta.tool_calls) else 0
        self._tool_calls += calls
        spent, said = self.meter.chunk(
            token_ids=ids,
            completion_tokens=completion_tokens,
            carries_text=bool(reasoning or answer),
            answering=has_answer or (not reasoning and self._session.state is State.ANSWERING),
        )
        actions: tuple[Action, ...] = ()
        if reasoning or spent:
            actions += self._session.receive(ReasoningSeen(spent), now_us)
        if has_answer or said:
            actions += self._session.receive(AnswerSeen(said), now_us)
        if not self._signals:
            actions += self._watch(ids, reasoning or answer, now_us)
        return actions

    def signal(self, row: SignalRow, now_us: int) -> tuple[Action, ...]:
        """Take a row of the worker's feed."""
        fresh = self._join.accept(row)
        if fresh is None or self._session.state is State.DONE:
            return ()
        if row.landing and not row.answering:
            self._session.note_landed_by_engine(WrapUpReason.BUDGET_SPENT)
        spent, said = self.meter.row(fresh.position, fresh.tokens, answering=row.answering)
        actions: tuple[Action, ...] = ()
        if spent:
            actions += self._session.receive(ReasoningSeen(spent), now_us)
        if said and self._session.state is State.ANSWERING:
            actions += self._session.receive(AnswerSeen(said), now_us)
        if self._signals:
            actions += self._watch(fresh.tokens, "", now_us)
        return actions

    def _watch(
        self, ids: "list[int] | tuple[int, ...]", text: str, now_us: int
    ) -> tuple[Action, ...]:
        if not self._plan.loops.enabled or not self._plan.governed:
            return ()
        answering = self._session.state is State.ANSWERING
        detector = self._answer_loops if answering else self._loops
        verdict = detector.push(ids) if ids else detector.push_text(text) if text else None
        if verdict is None:
            return ()
        self.loop = self.loop or verdict
        if answering:
            return self._session.receive(AnswerLooped(), now_us)
        return self._session.receive(LandingDue(WrapUpReason.LOOP), now_us)

    def plain(self, body: bytes) -> None:
        """Read the usage of a response that was not streamed."""
        try:
            usage = json.loads(body).get("usage") or {}
            details = usage.get("completion_tokens_details") or {}
            self._usage = (
                int(usage["prompt_tokens"]),
                _count((usage.get("prompt_tokens_details") or {}).get("cached_tokens")),
                int(usage["completion_tokens"]),
                _count(details.get("reasoning_tokens")),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self.faults += 1

    def counts(self) -> tuple[int, int, bool]:
        """(reasoning tokens, answer tokens, exact). The worker's final usage wins; a 0 of a worker
        that was seen to think does not (vLLM with the start tag in the prompt)."""
        session = self._session
        reasoning, answer, exact = session.reasoning_tokens, session.answer_tokens, self.meter.exact
        if self._usage is not None:
            _, _, total, counted = self._usage
            if counted:
                reasoning = counted
            answer, exact = max(0, total - reasoning), exact or bool(counted)
        return reasoning, answer, exact

    def unfinished(self, now_us: int, detail: str) -> StreamReport:
        """The account of a request whose machine failed, from the running counts alone."""
        self._usage = None
        return self.report(Cause.UPSTREAM_ERROR, None, LandingPath.NONE, now_us, detail)

    def report(
        self,
        cause: Cause,
        reason: WrapUpReason | None,
        path: LandingPath,
        now_us: int,
        detail: str,
    ) -> StreamReport:
        """The request's account. The worker's final usage wins over running counts."""
        session = self._session
        reasoning, answer, exact = self.counts()
        prompt, cached = self._usage[:2] if self._usage is not None else (None, None)
        return StreamReport(
            cause=cause,
            wrap_up_reason=reason,
            landing_path=path,
            prompt_tokens=prompt,
            cached_tokens=cached,
            reasoning_tokens=reasoning,
            answer_tokens=answer,
            exact=exact,
            count_source=self.meter.source,
            reopened_tokens=session.reopened_tokens,
            answer_characters=self._answer_characters,
            tool_calls=self._tool_calls,
            finish_reason=self.finish_reason,
            cap_violated=session.cap_violated,
            landing_failures=session.landing_failures,
            loop=self.loop,
            signal_gaps=self._join.gaps,
            observe_faults=self.faults,
            last_state=session.state,
            first_token_us=self._first_token_us,
            ended_us=now_us,
            detail=detail,
        )


def _count(value: object) -> int | None:
    """A count as a worker's JSON gives it; anything else is missing."""
    return value if type(value) is int and value >= 0 else None
