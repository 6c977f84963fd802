"""Sampling: logprobs against a float64 forward pass, seeds, filters, stops, lengths, penalties."""

from collections import Counter
from random import Random
from typing import Any

import pytest

pytestmark = pytest.mark.slow


def test_logprobs_match_a_float64_forward_pass(live: Any) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    stream = live.stream("sum u4i1z9b7", logprobs=True, top_logprobs=4, temperature=1.0, seed=3)
    prompt = stream.chunks[0]["prompt_token_ids"]
    model = AutoModelForCausalLM.from_pretrained(live.settings.model, dtype=torch.float64).eval()
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + stream.token_ids])).logits[0]
    logp = logits[len(prompt) - 1 : -1].log_softmax(-1)
    entries = [e for c in stream.choices[1:] for e in (c["logprobs"] or {"content": ()})["content"]]
    assert len(entries) == len(stream.token_ids)
    for row, token, entry in zip(logp, stream.token_ids, entries, strict=True):
        assert entry["logprob"] == pytest.approx(row[token].item(), abs=2e-3)
        best = row.topk(4).values.tolist()
        assert [t["logprob"] for t in entry["top_logprobs"]] == pytest.approx(best, abs=2e-3)


def test_a_seed_repeats_and_another_differs(live: Any) -> None:
    text = "sum u4i1z9b7c3d2e5f6g1"
    ids = [live.stream(text, temperature=1.5, seed=s, max_tokens=100).token_ids for s in (1, 1, 2)]
    assert ids[0] == ids[1] != ids[2]


def test_a_seed_repeats_in_a_full_batch(live: Any) -> None:
    from concurrent.futures import ThreadPoolExecutor

    text = "sum u4i1z9b7c3"
    alone = live.stream(text, temperature=1.0, seed=11).token_ids
    with ThreadPoolExecutor(8) as pool:
        together = list(
            pool.map(lambda s: live.stream(text, temperature=1.0, seed=s).token_ids, range(7, 15))
        )
    assert together[4] == alone


def test_top_k_one_and_tiny_top_p_are_greedy(live: Any) -> None:
    greedy = live.stream("sum u4i1z9").token_ids
    assert live.stream("sum u4i1z9", temperature=2.0, top_k=1).token_ids == greedy
    assert live.stream("sum u4i1z9", temperature=2.0, top_p=1e-9).token_ids == greedy


def test_draws_follow_the_filtered_distribution() -> None:
    import torch

    from governor_probes.embedded.request import Sampling
    from governor_probes.embedded.sampling import _draw

    class Row:
        def __init__(self, seed: int, sampling: Sampling) -> None:
            self.rng, self.sampling = Random(seed), sampling

    weights = torch.tensor([0.5, 0.3, 0.15, 0.05])
    rows = weights.log().repeat(4000, 1)
    for sampling, expected in (
        (Sampling(1, temperature=1.0), [0.5, 0.3, 0.15, 0.05]),
        (Sampling(1, temperature=1.0, top_k=2), [0.625, 0.375, 0, 0]),
        (Sampling(1, temperature=1.0, top_p=0.8), [0.625, 0.375, 0, 0]),
        (Sampling(1, temperature=0.5), [0.685, 0.247, 0.062, 0.007]),
    ):
        requests: Any = [Row(i, sampling) for i in range(4000)]
        counts = Counter(_draw(rows, requests).tolist())
        assert [counts[i] / 4000 for i in range(4)] == pytest.approx(expected, abs=0.03)


def test_a_stop_string_ends_and_is_cut_off(live: Any) -> None:
    stream = live.stream("sum h8s2k9", stop=["k9=1"])
    assert stream.finish_reason == "stop"
    assert stream.choices[-1]["stop_reason"] == "k9=1"
    assert stream.text("reasoning") == "h8=8\ns2=10\n"
    kept = live.chat("sum h8s2k9", stop="k9=1", include_stop_str_in_output=True)
    assert kept["choices"][0]["message"]["reasoning"] == "h8=8\ns2=10\nk9=1"


def test_text_held_for_a_stop_string_is_not_lost(live: Any) -> None:
    stream = live.stream("sum h8s2k9", stop=["\nso 20", "19\n\n\n"])
    assert stream.text("reasoning") == "h8=8\ns2=10\nk9=19\nso 19\n"
    assert stream.text("content") == "\n\n19"


def test_a_stop_token_ends_with_its_id(live: Any) -> None:
    stream = live.stream("sum h8s2k9", stop_token_ids=[302])
    assert (stream.token_ids[-1], stream.choices[-1]["stop_reason"]) == (302, 302)


def test_ignore_eos_and_min_tokens_go_on(live: Any) -> None:
    assert live.stream("sum h8s2", ignore_eos=True, max_tokens=60).finish_reason == "length"
    natural = live.stream("sum h8s2")
    longer = live.stream("sum h8s2", min_tokens=natural.usage["completion_tokens"] + 5)
    assert longer.usage["completion_tokens"] >= natural.usage["completion_tokens"] + 5
    assert 2 not in longer.token_ids[: natural.usage["completion_tokens"] + 4]


def test_penalties_change_what_is_repeated(live: Any) -> None:
    text = "sum a1b2c3d4e5f6g7h8i9j9k9"
    plain = live.stream(text, max_tokens=120).token_ids
    punished = live.stream(text, max_tokens=120, frequency_penalty=2.0).token_ids
    assert Counter(punished).most_common(1)[0][1] < Counter(plain).most_common(1)[0][1]


def test_a_non_finite_row_yields_a_token_and_a_flag() -> None:
    import torch

    from governor_kernels.token_stats import token_stats
    from governor_probes.embedded.request import Sampling
    from governor_probes.embedded.sampling import choose_tokens
    from governor_probes.landing_state import LandingState

    class Row:
        sampling = Sampling(5, temperature=1.0)
        landing = LandingState(None, None, thinking_open=False)
        position, counts, rng = 0, {}, Random(1)  # type: ignore[var-annotated]

    logits = torch.tensor([[0.0, float("nan"), 3.0, 1.0], [0.0, 1.0, 2.0, 9.0]])
    requests: Any = [Row(), Row()]
    stats = token_stats(logits, torch.tensor([0]))
    assert choose_tokens(logits, stats, requests, [3]).tolist() == [2, 3]
    assert stats.non_finite.tolist() == [True, False]
