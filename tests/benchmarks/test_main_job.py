"""The main job's pure parts: the mix, what counts as what, intervals, the flat JSON."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from benchmarks.client import Reply, sse_data
from benchmarks.main_job import Load, parse
from benchmarks.main_job_figures import Pair, figures, wanted
from benchmarks.main_job_view import show
from benchmarks.problems import WhyWrong, answered, mix, resumed_thinking, strata, why_wrong
from benchmarks.report import bootstrap, metadata, quantile, wilson, write_json
from governor_probes.tiny_reasoner.task import Problem, make_problem

NAMED_FIGURES = {
    "accuracy_direct",
    "accuracy_governed",
    "lost_correct",
    "answered_share",
    "kv_area_ratio",
    "loops_landed_share",
    "forced_landings",
    "empty_answers",
    "resumed_thinking",
}


def usage(prompt: int, output: int, thinking: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "completion_tokens_details": {"reasoning_tokens": thinking},
    }


def reply(content: str, *, landed: str | None = None, output: int = 30, **fields: Any) -> Reply:
    fields.setdefault("finish_reason", "stop")
    fields.setdefault("usage", usage(10, output, output - 4))
    return Reply(
        status=200,
        content=content,
        governor={"landed": landed},
        ttft_s=0.1,
        latency_s=1.0,
        **fields,
    )


def pair(direct: Reply, governed: Reply, items: int = 3) -> Pair:
    return Pair(make_problem(Random(items), items), direct, governed)


def answer(items: int = 3) -> str:
    return make_problem(Random(items), items).answer


def plain_pair() -> Pair:
    return pair(reply(answer()), reply(answer()))


def looping_pair() -> Pair:
    looped = reply("", finish_reason="length", output=2048)
    return pair(looped, reply(answer(12), landed="loop", output=300), 12)


# --- the mix


@pytest.mark.parametrize("count", [200, 30, 10, 101])
def test_the_mix_is_exact(count: int) -> None:
    found = Counter(problem.items for problem in mix(7, count))
    assert found == Counter(strata(count))
    endless = [found[k] for k in range(10, 15)]
    ending = [found[k] for k in range(2, 10)]
    assert sum(found.values()) == count
    assert sum(endless) == round(count / 10)
    assert max(endless) - min(endless) <= 1
    assert max(ending) - min(ending) <= 1


def test_the_mix_of_200_is_20_endless_and_180_that_end() -> None:
    assert strata(200) == {**dict.fromkeys(range(2, 6), 23), **dict.fromkeys(range(6, 10), 22),
                           **dict.fromkeys(range(10, 15), 4)}  # fmt: skip


def test_the_mix_follows_its_seed() -> None:
    assert mix(1, 60) == mix(1, 60)
    assert [p.question for p in mix(1, 60)] != [p.question for p in mix(2, 60)]


def test_too_few_problems_make_no_mix() -> None:
    with pytest.raises(ValueError, match="at least 10"):
        strata(9)


def test_blocks_hold_each_problem_once_and_end_with_their_round() -> None:
    rounds = tuple(tuple(mix(seed, 50)) for seed in (0, 1))
    blocks = Load(rounds, 8).blocks
    assert [len(block) for block in blocks] == [20, 20, 10, 20, 20, 10]
    assert [p for block in blocks for p in block] == [*rounds[0], *rounds[1]]


def test_quick_is_one_small_round_whatever_else_is_asked() -> None:
    asked = parse(["--quick", "--rounds", "5", "--problems", "900"])
    assert (asked.problems, asked.rounds) == (30, 1)


# --- one pair


def test_lost_and_gained_compare_the_two_sides() -> None:
    lost = pair(reply(answer()), reply("wrong"))
    gained = pair(reply("", finish_reason="length"), reply(answer()))
    assert (lost.lost, lost.gained) == (True, False)
    assert (gained.lost, gained.gained) == (False, True)
    assert (plain_pair().lost, plain_pair().gained) == (False, False)


def test_a_right_number_in_a_failed_stream_is_not_right() -> None:
    broken = reply(answer(), error="the stream ended without [DONE]")
    found = pair(reply(answer()), broken)
    assert found.lost
    assert not answered(broken)
    assert why_wrong(found.problem, broken) is WhyWrong.REQUEST_FAILED


@pytest.mark.parametrize(
    ("direct", "looped"),
    [
        (reply("", finish_reason="length"), True),
        (reply("\n\n4", finish_reason="length"), True),
        (reply("\n\n", finish_reason="stop"), True),
        (reply("46"), False),
        (reply("", finish_reason=None, error="ReadError: reset"), False),
    ],
)
def test_who_hits_the_cap_or_never_answers_loops(direct: Reply, looped: bool) -> None:
    assert pair(direct, reply("1"), 12).looped is looped


@pytest.mark.parametrize(
    ("reasoning", "content", "why"),
    [
        ("a1=1\nso 1\n", "1", None),
        ("a1=1\nso 7\n", "7", WhyWrong.CANDIDATE_WRONG),
        ("a1=1\nso 1\n", "7", WhyWrong.CANDIDATE_LOST),
        ("a1=1\n", "7", WhyWrong.NO_CANDIDATE_YET),
        ("a1=1\nso 1\n", " \n", WhyWrong.NO_ANSWER),
    ],
)
def test_a_wrong_answer_has_a_reason(reasoning: str, content: str, why: WhyWrong | None) -> None:
    problem = Problem(make_problem(Random(0), 2).kind, ("a", "b"), (1, 0), "1")
    assert why_wrong(problem, reply(content, reasoning=reasoning)) is why


# --- thinking inside the answer


@pytest.mark.parametrize(
    "content",
    [
        "</think>\n\n46",
        "46<think>",
        "46\nwait, check",
        "\n\na1=1\nb2=3",
        "so 46",
        "46\nyes 46",
        "46\nno, now 47",
    ],
)
def test_thinking_in_the_answer_is_found(content: str) -> None:
    assert resumed_thinking(reply(content))


@pytest.mark.parametrize("content", ["46", "\n\n46", "", "the sum is 46, so yes"])
def test_an_answer_alone_is_no_thinking(content: str) -> None:
    assert not resumed_thinking(reply(content))


def test_reasoning_behind_an_answer_is_found_in_the_stream() -> None:
    def streamed(*deltas: dict[str, str]) -> Reply:
        found = Reply()
        for delta in deltas:
            found.take({"choices": [{"delta": delta}]}, 0.1)
        return found

    thought, blank, text = {"reasoning": "a1"}, {"content": "\n\n"}, {"content": "4"}
    assert not resumed_thinking(streamed(thought, blank, text, text))
    assert not resumed_thinking(streamed(thought, blank, thought, text))
    assert resumed_thinking(streamed(thought, text, thought))
    assert resumed_thinking(streamed(text, {"reasoning_content": "b2"}))


# --- figures


def test_every_named_figure_is_there_and_counts() -> None:
    pairs = [plain_pair() for _ in range(8)] + [looping_pair(), looping_pair()]
    found = figures(pairs, 0)
    assert found.keys() >= NAMED_FIGURES
    assert (found["accuracy_direct"], found["accuracy_governed"]) == (0.8, 1.0)
    assert (found["lost_correct"], found["gained_correct"]) == (0.0, 0.2)
    assert (found["answered_share_direct"], found["answered_share"]) == (0.8, 1.0)
    assert (found["loops_direct"], found["loops_landed_share"]) == (2, 1.0)
    assert (found["forced_landings"], found["landings_by_reason_loop"]) == (2, 2)
    assert (found["empty_answers"], found["resumed_thinking"]) == (0, 0)
    assert (found["accuracy_direct_k3"], found["accuracy_direct_k12"]) == (1.0, 0.0)
    assert found["problems_k12"] == 2
    assert all(wanted(found).values())


def test_the_area_ratio_weighs_tokens_by_position() -> None:
    found = figures([pair(reply(answer(), output=2048), reply(answer(), output=300))], 0)
    # s·o + o(o+1)/2 with s = 10
    assert found["kv_area_direct"] == 10 * 2048 + 2048 * 2049 // 2
    assert found["kv_area_governed"] == 10 * 300 + 300 * 301 // 2
    assert found["kv_area_ratio"] == pytest.approx(48_150 / 2_118_656)


def test_replies_without_usage_are_left_out_of_the_area_on_both_sides() -> None:
    unknown = pair(reply(answer(), output=5000), reply("", usage=None, error="reset"))
    found = figures([plain_pair(), unknown], 0)
    assert found["pairs_without_usage"] == found["errors_governed"] == 1
    assert found["kv_area_ratio"] == 1.0
    assert not wanted(found)["no request failed"]


def test_a_loop_that_is_landed_empty_is_not_answered() -> None:
    empty = pair(reply("", finish_reason="length"), reply("\n", landed="loop"), 12)
    found = figures([looping_pair(), empty], 0)
    assert found["loops_landed_share"] == 0.5
    assert found["empty_answers"] == 1
    assert not wanted(found)["every looping request answered"]


def test_losses_miss_what_is_wanted() -> None:
    pairs = [plain_pair() for _ in range(99)] + [pair(reply(answer()), reply("0x"))]
    found = figures(pairs, 0)
    assert found["lost_correct"] == 0.01
    assert not wanted(found)["lost_correct at most 0.5 %"]


def test_the_result_is_shown_with_every_wrong_answer() -> None:
    pairs = [plain_pair(), looping_pair(), pair(reply(answer()), reply("77"))]
    console = Console(width=160)
    with console.capture() as shown:
        show(console, pairs, figures(pairs, 0))
    text = shown.get()
    assert "wrong through Governor" in text
    assert "no_candidate_yet" in text
    assert "kv_area_ratio" in text


# --- intervals


def share_of(values: Sequence[float]) -> Any:
    found = np.asarray(values)
    return lambda at: float(found[at].mean())


def test_an_interval_is_repeatable_and_holds_the_figure() -> None:
    values = [1.0] * 60 + [0.0] * 40
    low, high = bootstrap(100, share_of(values), 5)
    assert (low, high) == bootstrap(100, share_of(values), 5)
    uneven = share_of([value**0.5 for value in range(100)])
    assert bootstrap(100, uneven, 5) != bootstrap(100, uneven, 6)
    # normal approximation: 0.6 ± 1.96 · 0.049
    assert low == pytest.approx(0.504, abs=0.03)
    assert high == pytest.approx(0.696, abs=0.03)


def test_strata_keep_their_sizes() -> None:
    values = [1.0] * 10 + [0.0] * 90
    labels = [value == 1.0 for value in values]
    assert bootstrap(100, share_of(values), 5, strata=labels) == (0.1, 0.1)
    low, high = bootstrap(100, share_of(values), 5)
    assert low < 0.1 < high


def test_a_share_of_none_still_has_an_upper_end() -> None:
    low, high = wilson(0, 600)
    assert low == 0
    assert high == pytest.approx(0.00636, abs=1e-4)
    assert wilson(300, 600)[0] == pytest.approx(0.4601, abs=1e-3)


def test_nothing_has_no_interval() -> None:
    with pytest.raises(ValueError, match="nothing"):
        bootstrap(0, lambda at: 0.0, 1)
    with pytest.raises(ValueError, match="nothing"):
        wilson(0, 0)
    assert quantile([], 0.5) is None


# --- the file


def test_the_file_is_one_flat_object(tmp_path: Path) -> None:
    target = tmp_path / "results" / "main_job.json"
    meta = metadata(3, quick=True)
    write_json(str(target), figures([plain_pair(), looping_pair()], 0), meta)
    found = json.loads(target.read_text("utf-8"))
    assert found.keys() >= NAMED_FIGURES | {"date", "commit", "command", "machine_cpu"}
    assert all(not isinstance(value, dict | list) for value in found.values())
    assert (found["seed"], found["quick"]) == (3, True)


@pytest.mark.parametrize("value", [math.nan, math.inf, [1], {"a": 1}])
def test_what_is_not_flat_or_no_number_is_refused(value: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        write_json(str(tmp_path / "x.json"), {"figure": value}, {})
    assert not list(tmp_path.iterdir())


def test_figures_never_hide_where_they_come_from(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="date"):
        write_json(str(tmp_path / "x.json"), {"date": 1}, {"date": "today"})


# --- the stream


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_events_are_read_whole_however_the_bytes_come(size: int) -> None:
    text = ': hello\n\ndata: {"a":1}\r\n\r\nevent: x\ndata:[DONE]\ndata: "ü\u2028"\n\ndata: cut'
    raw = text.encode()

    async def pieces() -> Any:
        for at in range(0, len(raw), size):
            yield raw[at : at + size]

    found = [data async for data in sse_data(pieces())]
    assert found == [b'{"a":1}', '[DONE]\n"ü\u2028"'.encode()]
