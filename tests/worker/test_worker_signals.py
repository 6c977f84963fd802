"""The signals feed: gapless rows that agree with the stream, flags, keep-alives, slow readers."""

import json
import math
from typing import Any

import pytest

pytestmark = pytest.mark.slow
END = 302


def test_the_first_line_is_empty_and_batches_are_numbered(live: Any, signals: Any) -> None:
    live.stream("sum h8s2", request_id="seq")
    signals.finished("seq")
    first, *rest = list(signals.batches)
    epoch = live.client.get("/governor/v1/info").json()["worker_epoch"]
    assert first == {"schema": "governor.signals/1", "worker_epoch": epoch, "seq": 0, "rows": []}
    assert [b["seq"] for b in rest] == list(range(1, len(rest) + 1))
    assert {b["worker_epoch"] for b in rest} == {epoch}


def test_rows_are_gapless_and_agree_with_the_stream(live: Any, signals: Any) -> None:
    stream = live.stream("sum u4i1z9b7c3d2e5f6", request_id="rows", logprobs=True, top_logprobs=1)
    rows = signals.finished("rows")
    assert [t for row in rows for t in row[3]] == stream.token_ids
    position = 0
    for rid, attempt, at, tokens, entropy, margin, value, flags in rows:
        position += len(tokens)
        assert (rid, attempt, at, value) == ("rows", 0, position, None)
        assert 0 <= entropy < math.log(303)
        answering = bool(flags & 4)
        assert answering == (END in stream.token_ids[:at])
        assert (margin is None) == answering
        assert len(tokens) <= 8
    assert all(len(row[3]) == 8 for row in rows[:-1])
    assert [bool(row[7] & 32) for row in rows] == [False] * (len(rows) - 1) + [True]


def test_the_core_reads_every_batch_and_joins_the_rows(live: Any, signals: Any) -> None:
    from governor.core.signals import SignalJoin, decode_batch

    stream = live.stream("sum h8s2k9a1", request_id="join")
    signals.finished("join")
    batches = [decode_batch(message) for message in list(signals.batches)]
    assert sum(batch.faults for batch in batches) == 0
    join = SignalJoin()
    rows = [join.accept(row) for b in batches for row in b.rows if row.rid == "join"]
    assert [t for row in rows if row is not None for t in row.tokens] == stream.token_ids
    assert (join.gaps, join.repeats, join.position) == (0, 0, len(stream.token_ids))


def test_entropy_and_margin_are_the_models(live: Any, signals: Any) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    stream = live.stream("sum h8s2k9m4", request_id="exact", max_tokens=8)
    (row,) = signals.finished("exact")
    model = AutoModelForCausalLM.from_pretrained(live.settings.model, dtype=torch.float64).eval()
    prompt = stream.chunks[0]["prompt_token_ids"]
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + stream.token_ids])).logits[0]
    logp = logits[len(prompt) - 1 : -1].log_softmax(-1)
    entropy = -(logp.exp() * logp).sum(-1).mean().item()
    assert row[4] == pytest.approx(entropy, abs=2e-4)
    assert row[5] == pytest.approx((logp[-1].max() - logp[-1, END]).item(), abs=2e-3)


def test_a_forced_wrap_up_is_flagged(live: Any, signals: Any) -> None:
    live.stream("sum a1b2c3d4e5f6g7h8i9j9k9", request_id="landing", thinking_token_budget=12)
    rows = signals.finished("landing")
    assert [bool(row[7] & 8) for row in rows][:2] == [False, True]


def test_the_attempt_header_is_in_the_rows(live: Any, signals: Any) -> None:
    reply = live.client.post(
        "/v1/chat/completions",
        json=live.body("sum h8s2", request_id="try"),
        headers={"x-governor-attempt": "2"},
    )
    assert reply.status_code == 200
    assert {row[1] for row in signals.finished("try")} == {2}


def test_an_idle_feed_keeps_alive(live: Any, signals: Any) -> None:
    count = len(signals.batches)
    live.wait(lambda: len(signals.batches) >= count + 2, "two keep-alive batches", seconds=4)
    assert all(b["rows"] == [] for b in signals.batches[count:])


async def test_a_slow_subscriber_loses_the_oldest_rows_and_is_told() -> None:
    from governor_probes.embedded.request import SignalRow
    from governor_probes.embedded.signal_feed import SignalFeed

    feed = SignalFeed("epoch", limit_rows=4)
    lines = feed.lines()
    assert json.loads(await anext(lines))["rows"] == []
    feed.publish([SignalRow("r", 0, i, [i], 0.0, 0.0, None, 0) for i in range(6)])
    rows = json.loads(await anext(lines))["rows"]
    assert [row[2] for row in rows] == [2, 3, 4, 5]
    assert all(row[7] & 2 for row in rows)
    feed.publish([SignalRow("r", 0, 6, [6], 0.0, 0.0, None, 0)])
    assert [row[7] for row in json.loads(await anext(lines))["rows"]] == [0]
    feed.close()
    assert [json.loads(line)["rows"] async for line in lines] == []
