"""The landing state machine: budgets, landings, partial tags, re-opened blocks. No engine."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor_probes.landing_state import (
    Channel,
    LandingState,
    LandStatus,
    Phase,
    ThinkTags,
    WrapUp,
)

OPEN, CLOSE, LINE, WORD, SPACE = 1, 2, 3, 4, 5
# A tag of three tokens, as a tokenizer without think tokens writes it.
LONG_CLOSE = (6, 7, 8)
TEXT = {LINE: "\n", WORD: "word", SPACE: " ", 6: "</", 7: "think", 8: ">", 9: "```", 10: "up"}
ONE = ThinkTags((OPEN,), (CLOSE,))
LONG = ThinkTags((OPEN,), LONG_CLOSE)


def wrap(tags: ThinkTags) -> WrapUp:
    end = list(tags.end_ids)
    return WrapUp.around([LINE, *end, LINE], [*end, LINE], tags.end_ids)


def new(tags: ThinkTags = ONE, *, opened: bool = True) -> LandingState:
    return LandingState(tags, wrap(tags), thinking_open=opened)


def run(
    state: LandingState, wishes: Sequence[int], steps: int = 60
) -> tuple[list[int], list[Channel]]:
    """Plays a model that wants `wishes`, one per step, and obeys what is forced."""
    out: list[int] = []
    channels: list[Channel] = []
    wanted = iter(wishes)
    for _ in range(steps):
        forced = state.forced_token
        token = forced if forced is not None else next(wanted, None)
        if token is None:
            break
        out.append(token)
        channels += state.observe(token, TEXT.get(token, ""))
    channels += state.finish()
    assert len(channels) == len(out)
    return out, channels


def test_without_a_budget_nothing_is_forced() -> None:
    out, channels = run(new(), [WORD, LINE, CLOSE, WORD])
    assert out == [WORD, LINE, CLOSE, WORD]
    assert channels == [Channel.REASONING, Channel.REASONING, Channel.TAG, Channel.ANSWER]


@pytest.mark.parametrize("budget", [0, 1, 2, 5])
def test_a_budget_lets_exactly_its_tokens_through(budget: int) -> None:
    state = new()
    state.set_budget(budget)
    out, _ = run(state, [WORD] * 30)
    end = [CLOSE, LINE] if budget == 0 else [LINE, CLOSE, LINE]
    assert out[: budget + len(end)] == [WORD] * budget + end
    assert state.phase is Phase.ANSWERING


def test_behind_a_line_the_wrap_up_starts_without_its_newline() -> None:
    state = new()
    state.set_budget(2)
    assert run(state, [WORD, LINE, WORD])[0][:4] == [WORD, LINE, CLOSE, LINE]


def test_grace_ends_at_the_first_line_inside_the_budget() -> None:
    state = new()
    state.set_budget(6, grace_tokens=4)
    out, _ = run(state, [WORD, LINE, WORD, LINE, WORD, LINE])
    assert out[:5] == [WORD, LINE, WORD, LINE, CLOSE]  # the line at 2 is before (2, 6]


def test_a_code_fence_is_no_boundary() -> None:
    state = new()
    state.set_budget(7, grace_tokens=7)
    out, _ = run(state, [9, LINE, WORD, LINE, WORD, LINE, WORD, WORD])
    assert out.index(CLOSE) == 8  # seven tokens, the newline of the wrap-up, the tag


def test_landing_waits_for_a_boundary_and_no_longer_than_its_grace() -> None:
    state = new()
    state.observe(WORD, "word")
    assert state.land(3) is LandStatus.APPLIED
    assert state.land(0) is LandStatus.ALREADY_LANDING
    assert run(state, [WORD, LINE, WORD])[0][:3] == [WORD, LINE, CLOSE]
    late = new()
    late.observe(WORD, "word")
    late.land(3)
    assert run(late, [WORD] * 9)[0][:5] == [WORD, WORD, WORD, LINE, CLOSE]


def test_a_landing_at_a_boundary_is_immediate() -> None:
    state = new()
    state.observe(LINE, "\n")
    state.land(30)
    assert state.forced_token == CLOSE


def test_a_natural_end_drops_the_landing() -> None:
    state = new()
    state.observe(WORD, "word")
    state.land(5)
    out, _ = run(state, [CLOSE, WORD, LINE, WORD])
    assert out == [CLOSE, WORD, LINE, WORD]
    assert state.land(0) is LandStatus.THINKING_OVER


def test_a_landing_text_of_its_own_replaces_the_wrap_up() -> None:
    state = new()
    state.observe(WORD, "word")
    state.land(0, WrapUp.around([10], [10], ONE.end_ids))
    assert run(state, [WORD])[0][:3] == [10, CLOSE, WORD]


def test_a_partly_emitted_tag_is_continued() -> None:
    state = new(LONG)
    state.set_budget(3)
    out, channels = run(state, [WORD, 6, 7, WORD, WORD])
    assert out[:6] == [WORD, 6, 7, 8, LINE, WORD]
    assert channels[:5] == [Channel.REASONING, *[Channel.TAG] * 3, Channel.ANSWER]
    assert state.thinking_tokens == 1


def test_a_tag_broken_off_is_reasoning() -> None:
    state = new(LONG)
    _, channels = run(state, [6, 7, WORD, 6, 6, 7, 8])
    assert channels == [Channel.REASONING] * 4 + [Channel.TAG] * 3
    assert state.thinking_tokens == 4


def test_a_block_opened_again_is_closed_at_once_after_a_landing() -> None:
    state = new()
    state.set_budget(1)
    out, channels = run(state, [WORD, WORD, OPEN, WORD])
    assert out == [WORD, LINE, CLOSE, LINE, WORD, OPEN, CLOSE, WORD]
    assert channels[-3:] == [Channel.TAG, Channel.TAG, Channel.ANSWER]


def test_a_block_opened_again_within_a_budget_is_closed_at_once() -> None:
    state = new()
    state.set_budget(50)
    assert run(state, [WORD, CLOSE, WORD, OPEN, WORD])[0] == [
        WORD, CLOSE, WORD, OPEN, CLOSE, WORD,
    ]  # fmt: skip


def test_a_block_opened_again_without_a_budget_is_reasoning() -> None:
    _, channels = run(new(), [CLOSE, WORD, OPEN, WORD, CLOSE, WORD])
    assert channels == [
        Channel.TAG, Channel.ANSWER, Channel.TAG, Channel.REASONING, Channel.TAG, Channel.ANSWER,
    ]  # fmt: skip


def test_a_stray_end_tag_in_the_answer_is_a_tag() -> None:
    assert run(new(), [CLOSE, WORD, CLOSE, WORD])[1][2] is Channel.TAG


def test_a_model_that_opens_thinking_itself_obeys_a_budget_of_zero() -> None:
    state = new(opened=False)
    state.set_budget(0)
    assert run(state, [OPEN, WORD, WORD])[0][:2] == [OPEN, LINE]
    assert state.phase is Phase.ANSWERING


def test_a_budget_may_shrink_below_the_count_and_grow() -> None:
    state = new()
    run(state, [WORD] * 5)
    state.set_budget(2)
    assert state.forced_token == LINE
    grown = new()
    grown.set_budget(3)
    grown.observe(WORD, "word")
    grown.set_budget(4)
    assert run(grown, [WORD] * 9)[0][:5] == [WORD, WORD, WORD, LINE, CLOSE]


def test_another_token_than_the_forced_one_is_an_error() -> None:
    state = new()
    state.set_budget(0)
    with pytest.raises(ValueError, match="forced token 2 but token 4"):
        state.observe(WORD, "word")


def test_a_model_without_tags_only_answers() -> None:
    state = LandingState(None, None, thinking_open=True)
    assert state.set_budget(0) is LandStatus.THINKING_OVER
    assert run(state, [WORD, CLOSE])[1] == [Channel.ANSWER] * 2


def test_tags_need_a_wrap_up_and_counts_are_not_negative() -> None:
    with pytest.raises(ValueError, match="wrap-up"):
        LandingState(ONE, None, thinking_open=True)
    for bad in (
        lambda: new().set_budget(-1),
        lambda: new().set_budget(1, -1),
        lambda: new().land(-1),
    ):
        with pytest.raises(ValueError, match="negative"):
            bad()


TAGS = st.sampled_from([ONE, LONG])
WISHES = st.lists(st.integers(1, 9), min_size=1, max_size=60)


@given(TAGS, WISHES, st.integers(0, 20), st.integers(0, 8), st.booleans())
def test_the_model_never_thinks_beyond_its_budget(
    tags: ThinkTags, wishes: list[int], budget: int, grace: int, opened: bool
) -> None:
    state = new(tags, opened=opened)
    state.set_budget(budget, grace)
    out: list[int] = []
    chosen: list[bool] = []
    channels: list[Channel] = []
    wanted = iter(wishes)
    for _ in range(120):
        forced = state.forced_token
        token = forced if forced is not None else next(wanted, None)
        if token is None:
            break
        out.append(token)
        chosen.append(forced is None)
        channels += state.observe(token, TEXT.get(token, ""))
    channels += state.finish()
    own = [c for c, own in zip(channels, chosen, strict=True) if own and c is Channel.REASONING]
    assert len(own) <= budget
    assert len(channels) == len(out)
    assert state.thinking_tokens == channels.count(Channel.REASONING)


@given(TAGS, WISHES, st.integers(0, 20))
def test_no_token_of_a_tag_is_text(tags: ThinkTags, wishes: list[int], budget: int) -> None:
    state = new(tags)
    state.set_budget(budget)
    out, channels = run(state, wishes, steps=120)
    text = [t for t, c in zip(out, channels, strict=True) if c is not Channel.TAG]
    if tags is ONE:
        assert CLOSE not in text
    # Between the first end tag and the end nothing is reasoning again: the block is closed at once.
    end = channels.index(Channel.TAG) if Channel.TAG in channels else len(channels)
    assert Channel.REASONING not in channels[end:]


@given(WISHES, st.integers(0, 30), st.integers(0, 12))
def test_a_landing_is_over_after_grace_and_wrap_up(wishes: list[int], at: int, grace: int) -> None:
    state = new()
    plain = [w for w in wishes if w not in (OPEN, CLOSE)] + [WORD] * 60
    for token in plain[:at]:
        state.observe(token, TEXT.get(token, ""))
    assert state.land(grace) is LandStatus.APPLIED
    out, _ = run(state, plain[at:], steps=grace + 3)
    assert CLOSE in out
    assert out.index(CLOSE) <= grace + 1


@given(WISHES, st.integers(1, 25))
def test_repeating_a_landing_changes_nothing(wishes: list[int], repeats: int) -> None:
    once, often = new(), new()
    once.land(4)
    for _ in range(repeats):
        often.land(4)
    assert run(once, wishes) == run(often, wishes)
