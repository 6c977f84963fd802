"""ThinkingSession under any order of events: one Finish, at most one Land, no illegal move."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.errors import IllegalEvent
from governor.core.outcomes import Cause, WrapUpReason
from governor.core.session import (
    TRANSITIONS,
    Action,
    AnswerLooped,
    AnswerSeen,
    CutOff,
    Ended,
    Event,
    Finish,
    Land,
    LandingDue,
    LandingFailed,
    ReasoningSeen,
    Renew,
    SessionLimits,
    State,
    ThinkingSession,
)

EVENTS = st.one_of(
    st.builds(ReasoningSeen, st.integers(0, 40)),
    st.builds(AnswerSeen, st.integers(0, 40)),
    st.builds(LandingDue, st.sampled_from(WrapUpReason)),
    st.builds(LandingFailed, st.just("refused")),
    st.just(AnswerLooped()),
    st.builds(Ended, st.sampled_from(Cause)),
)
LIMITS = st.builds(
    SessionLimits,
    cap_tokens=st.none() | st.integers(0, 200),
    engine_budget_tokens=st.none() | st.integers(0, 200),
    engine_enforces=st.booleans(),
    landable=st.booleans(),
    land_at_us=st.none() | st.integers(0, 100),
    unlanded=st.booleans(),
)


def snapshot(session: ThinkingSession) -> tuple[object, ...]:
    return (
        session.state,
        session.reasoning_tokens,
        session.answer_tokens,
        session.wrap_up_reason,
        session.landing_failures,
    )


@given(LIMITS, st.lists(EVENTS, max_size=40))
def test_any_history_finishes_at_most_once_and_lands_at_most_once_at_a_time(
    limits: SessionLimits, events: list[Event]
) -> None:
    session = ThinkingSession(limits)
    finishes = outstanding = 0
    for moment, event in enumerate(events):
        before = snapshot(session)
        legal = type(event) in TRANSITIONS[session.state]
        actions: tuple[Action, ...]
        if legal:
            actions = session.receive(event, moment)
        else:
            with pytest.raises(IllegalEvent):
                session.receive(event, moment)
            assert snapshot(session) == before
            continue
        if isinstance(event, LandingFailed):
            outstanding = 0
        lands = [a for a in actions if isinstance(a, Land)]
        outstanding += len(lands)
        assert outstanding <= 1
        assert not lands or (limits.landable and not limits.unlanded)
        finishes += sum(isinstance(a, Finish) for a in actions)
    assert finishes == (session.state is State.DONE)


def limits(
    cap: int | None = None,
    budget: int | None = None,
    *,
    enforces: bool = False,
    landable: bool = True,
    land_at_us: int | None = None,
) -> SessionLimits:
    return SessionLimits(cap, budget, enforces, landable, land_at_us)


def test_the_gateway_lands_at_the_budget_when_the_worker_does_not_enforce_it() -> None:
    session = ThinkingSession(limits(cap=12, budget=10))
    assert session.receive(ReasoningSeen(9), 0) == ()
    assert session.receive(ReasoningSeen(1), 1) == (Land(WrapUpReason.BUDGET_SPENT),)
    assert session.state is State.LANDING


def test_a_worker_that_enforces_is_left_alone_until_it_breaks_the_cap() -> None:
    session = ThinkingSession(limits(cap=12, budget=10, enforces=True))
    assert session.receive(ReasoningSeen(12), 0) == ()
    assert not session.cap_violated
    assert session.receive(ReasoningSeen(1), 1) == (Land(WrapUpReason.BUDGET_SPENT),)
    assert session.cap_violated


def test_thinking_that_used_up_the_engines_budget_counts_as_wrapped_up() -> None:
    session = ThinkingSession(limits(cap=12, budget=10, enforces=True))
    session.receive(ReasoningSeen(12), 0)
    session.receive(AnswerSeen(1), 1)
    actions = session.receive(Ended(Cause.COMPLETED), 2)
    assert actions == (Finish(Cause.WRAPPED_UP, WrapUpReason.BUDGET_SPENT),)


def test_the_deadline_lands_by_time_alone() -> None:
    session = ThinkingSession(limits(land_at_us=100))
    session.receive(ReasoningSeen(5), 50)
    assert session.tick(99) == ()
    assert session.tick(100) == (Land(WrapUpReason.DEADLINE),)
    assert session.tick(101) == ()


def test_a_refused_landing_is_remembered_and_not_repeated() -> None:
    session = ThinkingSession(limits())
    session.receive(ReasoningSeen(5), 0)
    assert session.receive(LandingDue(WrapUpReason.LOOP), 1) == (Land(WrapUpReason.LOOP),)
    session.receive(LandingFailed("unknown request"), 2)
    assert session.state is State.THINKING
    assert session.wrap_up_reason is None
    assert session.receive(LandingDue(WrapUpReason.LOOP), 3) == ()


def test_a_looping_answer_is_cut_off_and_nothing_else_is() -> None:
    session = ThinkingSession(limits())
    session.receive(AnswerSeen(5), 0)
    assert session.receive(AnswerLooped(), 1) == (CutOff(),)
    assert session.receive(Ended(Cause.COMPLETED), 2) == (Finish(Cause.CUT_OFF, None),)
    thinking = ThinkingSession(limits())
    thinking.receive(ReasoningSeen(5), 0)
    with pytest.raises(IllegalEvent):
        thinking.receive(AnswerLooped(), 1)


def test_the_lease_is_renewed_at_geometric_checkpoints() -> None:
    session = ThinkingSession(limits())
    renewals = [
        at
        for at in range(1, 401)
        for action in session.receive(ReasoningSeen(1), at)
        if isinstance(action, Renew)
    ]
    assert renewals[0] == 16
    assert all(later / earlier >= 1.24 for earlier, later in pairwise(renewals))
    assert len(renewals) <= 16


def test_the_end_of_thinking_renews_the_lease_at_once() -> None:
    session = ThinkingSession(limits())
    session.receive(ReasoningSeen(20), 0)
    assert session.receive(AnswerSeen(1), 1) == (Renew(21, True),)
    assert session.receive(AnswerSeen(1), 2) == ()
