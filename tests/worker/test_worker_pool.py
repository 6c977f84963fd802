"""The KV pool: blocks freed by aborts, real preemption with right answers, prefix sharing."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest

pytestmark = pytest.mark.slow
ENDLESS = "sum a1b2c3d4e5f6g7h8i9j9k9"


def problem(seed: int, items: int) -> tuple[str, str]:
    random = Random(seed)
    labels = random.sample("abcdefghijklmnopqrstuvwxyz", items)
    values = [random.randint(0, 9) for _ in labels]
    text = "".join(f"{label}{value}" for label, value in zip(labels, values, strict=True))
    return f"sum {text}", str(sum(values))


def idle(live: Any) -> bool:
    return (
        live.metric("num_requests_running") == 0
        and live.metric("num_requests_waiting") == 0
        and live.metric("kv_cache_usage_perc") == 0
    )


def test_a_client_that_leaves_frees_its_blocks(live: Any) -> None:
    live.wait(lambda: idle(live), "the worker is idle")
    before = live.metric("request_success_total", finished_reason="abort")
    with live.lines("/v1/chat/completions", live.body(ENDLESS, max_tokens=3500)) as lines:
        for _ in range(5):
            next(lines)
        assert live.metric("num_requests_running") == 1
        assert live.metric("kv_cache_usage_perc") > 0
    live.wait(lambda: idle(live), "the blocks are free", seconds=2)
    assert live.metric("request_success_total", finished_reason="abort") == before + 1


def test_a_client_that_leaves_a_whole_reply_frees_its_blocks(live: Any) -> None:
    import httpx

    gone = httpx.Client(base_url=live.url, timeout=0.3, trust_env=False)
    with pytest.raises(httpx.ReadTimeout):
        gone.post("/v1/chat/completions", json=live.body(ENDLESS, max_tokens=3500))
    gone.close()
    live.wait(lambda: idle(live), "the blocks are free", seconds=2)


def test_a_waiting_request_can_be_aborted(live_small: Any) -> None:
    live = live_small
    release = threading.Event()

    def hold(seed: int) -> None:
        with live.lines("/v1/chat/completions", live.body(problem(seed, 12)[0])) as lines:
            for _ in lines:
                if release.is_set():
                    return

    with ThreadPoolExecutor(20) as pool:
        # More requests than max_num_seqs: some must wait, and some are aborted while they do.
        futures = [pool.submit(hold, seed) for seed in range(20)]
        live.wait(lambda: live.metric("num_requests_waiting") > 0, "a request waits")
        release.set()
        for future in futures:
            future.result()
    live.wait(lambda: idle(live), "everything is free")


def test_exhaustion_preempts_and_all_answers_stay_right(
    live_small: Any, read_signals: Callable[[Any], Any]
) -> None:
    live = live_small
    signals = read_signals(live)
    before = live.metric("num_preemptions_total")
    problems = [problem(seed, 8) for seed in range(12)]
    alone = [live.stream(text).token_ids for text, _ in problems[:3]]
    with ThreadPoolExecutor(12) as pool:
        streams = list(
            pool.map(
                lambda i: live.stream(problems[i][0], request_id=f"p{i}"), range(len(problems))
            )
        )
    assert live.metric("num_preemptions_total") > before
    for stream, (_, answer) in zip(streams, problems, strict=True):
        assert stream.text("content").strip() == answer
        assert stream.usage["completion_tokens"] == len(stream.token_ids)
    assert [s.token_ids for s in streams[:3]] == alone
    recomputed = 0
    for i, stream in enumerate(streams):
        rows = signals.finished(f"p{i}")
        # Recomputation repeats no position: the rows' tokens are the stream's, once each.
        assert [t for row in rows for t in row[3]] == stream.token_ids
        recomputed += sum(1 for row in rows if row[7] & 16)
    assert recomputed > 0
    live.wait(lambda: idle(live), "everything is free")


def test_usage_is_the_share_of_blocks_that_requests_hold(live_small: Any) -> None:
    live = live_small
    live.wait(lambda: idle(live), "the worker is idle")
    with live.lines("/v1/chat/completions", live.body(problem(3, 10)[0], ignore_eos=True)) as lines:
        for _ in range(40):
            next(lines)
        share = live.metric("kv_cache_usage_perc")
        assert 0 < share <= 1
        assert share * 24 == pytest.approx(round(share * 24))


def test_a_shared_prefix_is_found_and_counted(live: Any) -> None:
    text = "sum q1w2e3r4t5y6u7i8o9p1"
    first = live.chat(text, max_tokens=30)
    queries, hits = (
        live.metric("prefix_cache_queries_total"),
        live.metric("prefix_cache_hits_total"),
    )
    second = live.chat(text, max_tokens=30)
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    prompt = second["usage"]["prompt_tokens"]
    assert cached == (prompt - 1) // 16 * 16 > 0
    assert first["choices"][0]["message"] == second["choices"][0]["message"]
    assert live.metric("prefix_cache_queries_total") == queries + prompt
    assert live.metric("prefix_cache_hits_total") == hits + cached


def test_lower_priority_values_run_first(live_small: Any) -> None:
    live = live_small
    order: list[int] = []

    def ask(priority: int) -> None:
        live.chat(problem(priority + 1, 4)[0], priority=priority)
        order.append(priority)

    with live.lines("/v1/chat/completions", live.body(problem(1, 14)[0], max_tokens=60)) as lines:
        next(lines)
        with ThreadPoolExecutor(40) as pool:
            # Far more than fit: the last to be asked, with the lowest value, overtakes.
            late = [pool.submit(ask, 50 + i) for i in range(30)]
            live.wait(lambda: live.metric("num_requests_waiting") > 8, "a queue")
            first = pool.submit(ask, -1)
            for future in [*late, first]:
                future.result()
    assert order.index(-1) < 25


def test_metrics_have_vllm_names_and_labels(live: Any) -> None:
    live.chat("sum h8s2")
    text = live.client.get("/metrics").text
    info = next(x for x in text.splitlines() if x.startswith("vllm:cache_config_info{"))
    assert 'num_gpu_blocks="1024"' in info
    assert 'block_size="16"' in info
    for name in (
        "prompt_tokens_total",
        "generation_tokens_total",
        "time_to_first_token_seconds_count",
        "inter_token_latency_seconds_count",
        "e2e_request_latency_seconds_count",
        "request_queue_time_seconds_count",
    ):
        assert live.metric(name, engine="0", model_name="tiny-reasoner") > 0
    assert live.metric("request_success_total", finished_reason="stop") > 0
