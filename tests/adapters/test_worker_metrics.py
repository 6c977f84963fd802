"""A worker's metrics: exact names, absent is unknown, several engines are refused."""

from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.adapters.worker_metrics import WorkerIsSeveralPools, parse_metrics
from governor.core.errors import UpstreamProtocolError
from governor.core.worker_facts import WorkerScrape

SAMPLE = (Path(__file__).parent.parent / "data" / "vllm_metrics.txt").read_text(encoding="utf-8")


def test_a_real_exposition_is_read() -> None:
    assert parse_metrics(SAMPLE) == WorkerScrape(
        running=0,
        waiting=0,
        waiting_capacity=0,
        kv_used_fraction=0.0,
        num_blocks=4096,
        block_size=128,
        preemptions=0,
        generation_tokens=3441,
        inter_token_s=(53.07890226799918, 3414.0),
        process_start_s=1796083112.89,
    )


def test_absent_metrics_are_unknown_and_never_zero() -> None:
    nothing = parse_metrics("# HELP x y\n# TYPE x counter\nx_total 3\n\n")
    assert nothing == WorkerScrape()
    assert all(getattr(nothing, field.name) is None for field in fields(WorkerScrape))


@pytest.mark.parametrize(
    ("line", "member"),
    [
        ("vllm:num_requests_running", "running"),
        ("vllm:num_requests_waiting", "waiting"),
        ("vllm:kv_cache_usage_perc", "kv_used_fraction"),
        ("vllm:num_preemptions_total", "preemptions"),
        ("vllm:generation_tokens_total", "generation_tokens"),
        ("process_start_time_seconds", "process_start_s"),
    ],
)
def test_each_metric_is_read_alone(line: str, member: str) -> None:
    scrape = parse_metrics(f'{line}{{engine="0"}} 1.0\n')
    known = [field.name for field in fields(scrape) if getattr(scrape, field.name) is not None]
    assert known == [member]


def test_waiting_is_not_summed_with_its_split_by_reason() -> None:
    text = (
        'vllm:num_requests_waiting{engine="0"} 5\n'
        'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 2\n'
        'vllm:num_requests_waiting_by_reason{engine="0",reason="deferred"} 3\n'
    )
    scrape = parse_metrics(text)
    assert (scrape.waiting, scrape.waiting_capacity) == (5, 2)


def test_the_split_alone_says_nothing_of_all_that_wait() -> None:
    scrape = parse_metrics('vllm:num_requests_waiting_by_reason{reason="deferred"} 3\n')
    assert (scrape.waiting, scrape.waiting_capacity) == (None, None)


def test_the_old_name_of_the_fill_is_read_where_the_present_one_is_absent() -> None:
    assert parse_metrics("vllm:gpu_cache_usage_perc 0.25\n").kv_used_fraction == 0.25
    both = "vllm:gpu_cache_usage_perc 0.25\nvllm:kv_cache_usage_perc 0.5\n"
    assert parse_metrics(both).kv_used_fraction == 0.5


def test_several_engines_behind_one_url_are_a_typed_error() -> None:
    text = SAMPLE + 'vllm:num_requests_running{engine="1",model_name="tiny"} 4.0\n'
    with pytest.raises(WorkerIsSeveralPools, match=r"\['0', '1'\]"):
        parse_metrics(text)


def test_models_of_one_engine_share_its_pool() -> None:
    text = "".join(
        f'vllm:num_requests_running{{engine="0",model_name="{name}"}} {count}\n'
        f'vllm:kv_cache_usage_perc{{engine="0",model_name="{name}"}} 0.5\n'
        for name, count in (("base", 2), ("lora", 3))
    )
    scrape = parse_metrics(text)
    assert (scrape.running, scrape.kv_used_fraction) == (5, 0.5)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
def test_a_figure_that_is_no_number_is_unknown(value: str) -> None:
    text = f"vllm:num_requests_running {value}\nvllm:kv_cache_usage_perc {value}\n"
    assert parse_metrics(text) == WorkerScrape()


def test_a_pool_size_that_is_no_number_is_unknown() -> None:
    text = 'vllm:cache_config_info{num_gpu_blocks="None",block_size="inf"} 1.0\n'
    assert parse_metrics(text) == WorkerScrape()


@pytest.mark.parametrize(
    "text",
    ["<html><body>no</body></html>", '{"error": 1}', "vllm:num_requests_running{engine=0} x\n"],
)
def test_text_that_is_no_exposition_is_a_typed_error(text: str) -> None:
    with pytest.raises(UpstreamProtocolError):
        parse_metrics(text)


@given(st.text(alphabet='vlm:_{}",=\\ \n\t#0.5eNa-' + "é", max_size=80))
def test_whatever_comes_only_the_typed_error_escapes(text: str) -> None:
    for line in (text, f"vllm:num_requests_running{text}", f"vllm:cache_config_info{{{text}"):
        try:
            parse_metrics(line)
        except UpstreamProtocolError:
            continue
