"""Exact loops are found soon, and only exact loops."""

import gzip
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from governor.core.errors import PolicyInvalid, UpstreamProtocolError
from governor.core.loops import LoopDetector, LoopSettings, LoopVerdict

SAMPLE = Path(__file__).parent.parent / "data" / "loops" / "sample.jsonl.gz"


def verdicts(tokens: list[int], detector: LoopDetector | None = None) -> list[LoopVerdict]:
    detector = detector or LoopDetector()
    return [found for token in tokens if (found := detector.push((token,))) is not None]


def text_verdicts(text: str, step: int = 40) -> list[LoopVerdict]:
    detector = LoopDetector()
    parts = [text[i : i + step] for i in range(0, len(text), step)] + [" \n"]
    return [found for part in parts if (found := detector.push_text(part)) is not None]


def distinct(count: int, seed: int, low: int = 0) -> list[int]:
    return random.Random(seed).sample(range(low, low + 50_000), count)


@pytest.mark.parametrize("period", [12, 17, 24, 68, 100, 1000, 4096, 8191, 8192])
def test_a_block_is_a_loop_once_it_has_been_seen_three_times(period: int) -> None:
    lead, block = distinct(700, seed=1, low=100_000), distinct(period, seed=period)
    tokens = lead + block * max(4, 100 // period)
    (found,) = verdicts(tokens)
    needed = max(48, 2 * period)
    assert found.period_tokens == period
    assert found.onset_position == len(lead)
    assert needed <= found.run_tokens <= needed + 32
    assert found.at_position == len(lead) + period + found.run_tokens - 1
    assert found.kind == "exact_cycle"


def test_longer_periods_than_the_settings_say_are_not_followed() -> None:
    block = distinct(300, seed=2)
    assert verdicts(block * 5, LoopDetector(LoopSettings(max_period_tokens=299))) == []
    assert verdicts(block * 5, LoopDetector(LoopSettings(max_period_tokens=300)))


def test_a_block_repeated_once_is_a_verification_pass_and_no_loop() -> None:
    for period in (30, 500, 5000):
        lead, block = distinct(50, 3, low=100_000), distinct(period, 4)
        assert verdicts(lead + block * 2 + distinct(100, 5, low=200_000)) == []


def test_a_block_that_changes_a_little_each_time_is_no_exact_loop() -> None:
    block = distinct(80, 6)
    assert verdicts([t for i in range(40) for t in [*block, 100_000 + i]]) == []


def test_separators_need_four_times_as_long() -> None:
    assert verdicts(distinct(40, 7) + [99_999] * 190) == []
    (found,) = verdicts(distinct(40, 7) + [99_999] * 200)
    assert found.period_tokens == 1
    few = [1, 2, 3, 4] * 48
    assert verdicts(few) == []
    (found,) = verdicts(few + few)
    assert found.period_tokens == 4


def test_a_guard_can_ask_for_a_longer_run_and_hears_of_each_run_once() -> None:
    asked: list[tuple[int, ...]] = []

    def enumeration(block: Any, loop_settings: LoopSettings) -> int:
        asked.append(tuple(block))
        return 3

    block = distinct(50, 8)
    (found,) = verdicts(block * 10, LoopDetector(guards=(enumeration,)))
    assert found.run_tokens == 300
    assert len(asked) == 1
    assert sorted(asked[0]) == sorted(block)


def test_one_verdict_for_each_onset() -> None:
    block = distinct(60, 9)
    tokens = block * 20 + distinct(40, 10, low=100_000) + block * 20
    first, second = verdicts(tokens)
    assert first.onset_position == 0
    assert second.onset_position == len(block) * 20 + 40


def test_a_period_made_of_equal_parts_is_reported_as_the_part() -> None:
    block = distinct(13, 11)
    (found,) = verdicts(block * 30)
    assert found.period_tokens == 13


def test_blocks_with_inner_repetition_are_found() -> None:
    inner = distinct(30, 12)
    block = inner * 2 + [70_000] + inner * 2 + [70_001] + inner + [70_002]
    (found,) = verdicts(distinct(33, 13, low=100_000) + block * 5)
    assert found.period_tokens == len(block)
    assert found.run_tokens <= 2 * len(block) + 64


def test_a_loop_at_the_end_of_a_long_stream_is_found_where_it_is() -> None:
    rng = random.Random(14)
    lead = [rng.randrange(50_000) for _ in range(70_000)]
    block = distinct(3000, 15, low=100_000)
    (found,) = verdicts(lead + block * 4)
    assert found.period_tokens == 3000
    assert found.onset_position == 70_000


@given(
    st.integers(0, 2**32),
    st.integers(12, 120),
    st.integers(0, 200),
    st.lists(st.integers(1, 97), min_size=1, max_size=20),
)
@settings(max_examples=60, deadline=None)
def test_batches_give_the_verdict_of_single_tokens(
    seed: int, period: int, lead: int, sizes: list[int]
) -> None:
    tokens = distinct(lead, seed, low=100_000) + distinct(period, seed + 1) * 8
    detector = LoopDetector()
    batched, start, turn = [], 0, 0
    while start < len(tokens):
        size = sizes[turn % len(sizes)]
        found = detector.push(tokens[start : start + size])
        batched += [found] if found else []
        start, turn = start + size, turn + 1
    assert batched == verdicts(tokens)
    whole = LoopDetector().push(tokens)
    assert [whole] == batched


@given(st.lists(st.integers(0, 3), max_size=700))
@settings(max_examples=100, deadline=None)
def test_every_verdict_is_true_of_the_tokens(tokens: list[int]) -> None:
    strict = LoopSettings(min_run_tokens=16, min_distinct_tokens=1)
    for found in verdicts(tokens, LoopDetector(strict)):
        period, end = found.period_tokens, found.at_position + 1
        run = tokens[end - found.run_tokens : end]
        assert run == tokens[end - found.run_tokens - period : end - period]
        assert found.run_tokens >= strict.needed_run(period)
        assert found.onset_position == end - found.run_tokens - period >= 0


def test_text_gives_the_same_verdict_however_it_is_cut() -> None:
    text = "A first remark. " + "Wait, café ≤ 1.25; let me check that again, slowly…\n\n" * 12
    whole = text_verdicts(text, step=len(text))
    assert len(whole) == 1
    for step in (1, 2, 3, 7, 50):
        assert text_verdicts(text, step) == whole


def test_a_text_without_spaces_does_not_wait_for_ever() -> None:
    assert text_verdicts("a" * 20_000)
    (found, *_) = text_verdicts("abcdefghijklmnopqrstuvwxyz" * 500)
    assert found.period_tokens == 26
    assert text_verdicts("3" * 500)


def check_pass(items: list[tuple[str, int]]) -> str:
    total, lines = 0, []
    for label, value in items:
        total += value
        lines.append(f"{label}{value}={total}")
    return "wait, check\n" + "\n".join(lines) + f"\nyes {total}\n"


def test_an_endless_checker_is_caught_in_its_third_equal_pass() -> None:
    rng = random.Random(16)
    items = [(label, rng.randrange(1, 10)) for label in rng.sample("abcdefghijklmnop", 10)]
    one = check_pass(items)
    first = "\n".join(one.splitlines()[1:-1]) + f"\nso {one.split()[-1]}\n"
    text = first + one * 8
    (found,) = verdicts([ord(character) for character in text])
    assert found.period_tokens == len(one)
    # The tail of the first pass, which ends its lines alike, may count to the loop.
    assert found.at_position <= len(first) + 3 * len(one)
    assert text_verdicts(text)


def test_reset_forgets_the_stream() -> None:
    detector = LoopDetector()
    block = distinct(60, 17)
    assert verdicts(block * 2 + block[:50], detector) == []
    detector.reset()
    assert verdicts(block * 2, detector) == []
    (found,) = verdicts(block * 2, detector)
    assert found.onset_position == 0


@pytest.mark.parametrize("bad", [[-1], [2**32], ["a"], [1.5], [None]])
def test_what_is_no_token_id_is_a_typed_error(bad: list[Any]) -> None:
    detector = LoopDetector()
    block = distinct(60, 18)
    detector.push(block * 2)
    with pytest.raises(UpstreamProtocolError):
        detector.push(bad)
    assert detector.push(block * 2) is not None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("min_repeats", 1),
        ("min_run_tokens", 3),
        ("max_period_tokens", 0),
        ("max_period_tokens", 65_536),
    ],
)
def test_unusable_settings_are_refused(name: str, value: int) -> None:
    with pytest.raises(PolicyInvalid):
        LoopSettings(**{name: value})


def test_real_loops_are_found_and_real_thinking_that_ended_is_left_alone() -> None:
    with gzip.open(SAMPLE, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    found = {row["id"]: text_verdicts(row["text"]) for row in rows}
    loops = [row["id"] for row in rows if row["kind"] == "loop"]
    ended = [row["id"] for row in rows if row["kind"] == "ended"]
    assert len(loops) >= 30
    assert len(ended) >= 20
    assert [name for name in loops if not found[name]] == []
    assert [name for name in ended if found[name]] == []


def near_copies() -> list[int]:
    block, out = distinct(2000, 19), []
    for turn in range(20):
        block[turn * 7] = 60_000 + turn
        out += block
    return out


def fibonacci() -> list[int]:
    a, b = [0], [0, 1]
    while len(b) < 40_000:
        a, b = b, b + a
    return b[:40_000]


@pytest.mark.parametrize("make", [near_copies, fibonacci])
def test_streams_built_to_look_like_loops_stay_cheap(make: Any) -> None:
    tokens = make()
    detector = LoopDetector()
    started = time.process_time()
    detector.push(tokens)
    # Some 3 µs a token; a scan over the periods takes a thousand times that.
    assert time.process_time() - started < len(tokens) * 100e-6
