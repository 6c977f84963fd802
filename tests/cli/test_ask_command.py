"""`governor ask` against a scripted gateway: what it sends, what it shows, how it fails."""

import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from governor.cli.app import build_app
from governor.cli.ask import LiveDisplay
from governor.cli.ask_transcript import Transcript
from governor.cli.ask_view import entropy_text, frame, sparkline, used_text
from governor.cli.gateway_client import default_url
from tests.fake_gateway import BLOCK, DECISION_ID, FakeGateway, delta, error, served

USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 41,
    "completion_tokens_details": {"reasoning_tokens": 38},
}
STREAM = [
    delta(role="assistant", content=""),
    delta(reasoning="h8=8\n"),
    delta(reasoning="s2=10\nso 19 ✓"),
    delta(content="\n\n1"),
    delta(content="9"),
    {**delta(), "choices": [], "usage": USAGE},
    {**delta(), "choices": [], "governor": BLOCK},
]


@pytest.fixture
def fake() -> Iterator[FakeGateway]:
    with served() as gateway:
        gateway.chunks = list(STREAM)
        gateway.signal_rows = [
            {"position": 8, "entropy": 0.1, "margin": 9.0, "flags": 0},
            {"position": 16, "entropy": None, "margin": None, "flags": 1},
            {"position": 24, "entropy": 1.5, "margin": 2.0, "flags": 0},
        ]
        yield gateway


@pytest.fixture
def ask(fake: FakeGateway) -> Callable[..., Result]:
    def run(*arguments: str) -> Result:
        words = ["ask", *arguments, "--url", fake.url]
        return CliRunner().invoke(build_app(words), words)

    return run


def test_a_pipe_gets_thinking_answer_and_decision_as_plain_lines(ask: Any) -> None:
    result = ask("sum h8s2k9")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[:3] == ["h8=8", "s2=10", "so 19 ✓"]
    assert "answer: 19" in lines
    assert "entropy: ▁ █ 1.50 nats" in lines
    for line in (
        f"decision: {DECISION_ID}",
        "mode: enforce",
        "asked: 40",
        "granted: 40 (client_budget)",
        "path: native",
        "used: 38 of 40 tokens",
        "cause: wrapped_up",
        "landed: yes, loop (by control)",
        "queued: 12 ms",
        "forecast: 30 tokens in half of the cases, 90 in 90 %, a prior without evidence",
        "notes: n > 1: admitted and relayed, never landed",
    ):
        assert line in lines
    assert "\x1b" not in result.stdout


def test_missing_signals_are_missing_and_never_zero(fake: FakeGateway, ask: Any) -> None:
    fake.signal_rows = None
    assert "entropy: missing (no such request is running (HTTP 404))" in ask("q").stdout
    fake.signal_rows = []
    assert "entropy: missing\n" in ask("q").stdout
    fake.signal_rows = [{"position": 1, "entropy": None, "margin": None, "flags": 1}]
    assert "entropy: missing\n" in ask("q").stdout
    assert json.loads(ask("q", "--json").stdout)["entropy"] == [None]


def test_options_become_the_fields_of_the_request(fake: FakeGateway, ask: Any) -> None:
    options = ("--budget", "64", "--effort", "low", "--max-tokens", "99", "--key", "gk-1")
    ask("sum h8", "--model", "other", *options)
    ask("sum h8")
    full, plain = fake.bodies
    assert full["messages"] == [{"role": "user", "content": "sum h8"}]
    assert full["governor"] == {"explain": True, "budget_tokens": 64}
    assert (full["model"], full["reasoning_effort"]) == ("other", "low")
    assert (full["max_completion_tokens"], full["stream"]) == (99, True)
    assert plain["governor"] == {"explain": True}
    assert plain["model"] == "tiny"
    assert {"reasoning_effort", "max_completion_tokens"}.isdisjoint(plain)
    assert fake.keys == ["Bearer gk-1", None]


def test_json_is_one_object(ask: Any) -> None:
    found = json.loads(ask("sum h8s2k9", "--json").stdout)
    assert (found["answer"], found["answered"], found["done"]) == ("19", True, True)
    assert found["thinking"] == "h8=8\ns2=10\nso 19 ✓"
    assert (found["used_tokens"], found["used_exact"], found["granted_tokens"]) == (38, True, 40)
    assert found["governor"] == BLOCK
    assert found["entropy"] == [0.1, None, 1.5]
    assert found["error"] is None


def test_a_refusal_is_told_with_the_time_to_come_back(fake: FakeGateway, ask: Any) -> None:
    fake.refuse = lambda: error(503, "no headroom", "no_headroom", retry_after="7")
    result = ask("q")
    assert result.exit_code == 1
    assert result.stderr == "no headroom (HTTP 503); try again in 7 s\n"
    found = json.loads(ask("q", "--json").stdout)["error"]
    assert found["code"] == "no_headroom"
    assert (found["status"], found["retry_after_s"]) == (503, "7")


def test_an_error_in_mid_stream_keeps_what_came_and_fails(fake: FakeGateway, ask: Any) -> None:
    fake.chunks = [*STREAM[:3], {"error": {"message": "the worker failed", "code": "x"}}]
    fake.finish = False
    result = ask("q")
    assert result.exit_code == 1
    assert "so 19 ✓\n" in result.stdout
    assert "answer: (no answer)" in result.stdout
    assert "the stream ended with an error: the worker failed" in result.stderr


def test_a_stream_without_its_end_is_an_error(fake: FakeGateway, ask: Any) -> None:
    fake.finish = False
    result = ask("q")
    assert result.exit_code == 1
    assert "broke off" in result.stderr


def test_an_empty_answer_fails_and_a_tool_call_does_not(fake: FakeGateway, ask: Any) -> None:
    fake.chunks = STREAM[:3]
    assert ask("q").exit_code == 1
    fake.chunks = [
        delta(tool_calls=[{"index": 0, "function": {"name": "add", "arguments": '{"a"'}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": ": 1}"}}]),
    ]
    result = ask("q")
    assert result.exit_code == 0
    assert 'answer: add({"a": 1})' in result.stdout


def test_without_the_block_headers_speak_and_the_rest_is_unknown(
    fake: FakeGateway, ask: Any
) -> None:
    fake.chunks = STREAM[:-1]
    lines = ask("q").stdout.splitlines()
    assert "granted: 40 (client_budget)" in lines
    assert "cause: unknown: the response has no governor block" in lines
    assert not [line for line in lines if line.startswith("landed")]
    assert "forecast: unknown" in lines


def test_no_gateway_and_no_model_are_told(fake: FakeGateway, ask: Any) -> None:
    words = ["ask", "q", "--url", "http://127.0.0.1:1"]
    result = CliRunner().invoke(build_app(words), words)
    assert result.exit_code == 1
    assert "no gateway at http://127.0.0.1:1" in result.stderr
    assert "governor serve --embedded" in result.stderr
    fake.models = []
    assert f"{fake.url} serves no model" in ask("q").stderr


def test_a_terminal_sees_the_thinking_grow_and_then_the_decision() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, height=24, color_system=None)
    transcript = Transcript()
    transcript.opened({"X-Governor-Budget-Granted": "40", "X-Governor-Decision": "d1"})
    display = LiveDisplay(transcript, console)
    display.begin()
    for chunk in STREAM:
        display.added(*transcript.event(chunk))
    transcript.signal({"position": 8, "entropy": 0.4})
    display.end()
    shown = out.getvalue()
    for text in ("thinking", "so 19 ✓", "38 of 40 tokens", "0.40 nats", "what the governor"):
        assert text in shown
    assert "answer: 19" in shown


def test_the_live_frame_never_outgrows_the_terminal() -> None:
    console = Console(file=io.StringIO(), width=40, height=20)
    transcript = Transcript()
    transcript.event(delta(reasoning="a1=5\n" * 400 + "x" * 500))
    transcript.event(delta(content="19"))
    transcript.entropies = [0.5] * 900
    lines = console.render_lines(frame(transcript, console), pad=False)
    assert len(lines) <= console.height
    assert any("x" in "".join(part.text for part in line) for line in lines)


def test_counts_are_exact_only_where_tokens_were_counted() -> None:
    transcript = Transcript()
    transcript.event(delta(reasoning="a"))
    transcript.event(delta(reasoning_content="b"))
    assert used_text(transcript) == "~2 tokens, no budget"
    transcript.event({**delta(reasoning="c"), "usage": USAGE})
    assert used_text(transcript) == "38 tokens, no budget"
    assert transcript.thinking == "abc"


def test_sparkline_scales_to_its_peak_and_shows_gaps() -> None:
    assert sparkline([0.0, 0.7], 10) == "▁█"
    assert sparkline([0.1, 0.1], 10) == "▂▂"
    assert sparkline([7.0, None, 3.5], 10) == "█ ▅"
    assert sparkline([1.0, 2.0, 2.0], 2) == "██"
    assert entropy_text(Transcript(), 80) == "missing"


def test_the_gateway_is_looked_for_where_the_environment_puts_it() -> None:
    assert default_url({}) == "http://127.0.0.1:8080"
    assert default_url({"GOVERNOR_PORT": "9", "GOVERNOR_HOST": "0.0.0.0"}) == "http://127.0.0.1:9"
    assert default_url({"GOVERNOR_URL": "http://h:1", "GOVERNOR_PORT": "9"}) == "http://h:1"
