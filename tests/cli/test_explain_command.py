"""`governor explain` on the golden decision record, served by a scripted gateway."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from governor.cli.app import build_app
from tests.fake_gateway import FakeGateway, served

GOLDEN = Path(__file__).parent.parent / "data" / "contracts" / "decision_record.json"
VERDICTS = (["fits,", "chosen"], ["no_headroom"])
OUTCOME = {"cause": "wrapped_up", "landed": "loop", "first_token_us": None, "waste": {"looped": 7}}


@pytest.fixture
def fake() -> Iterator[FakeGateway]:
    with served() as gateway:
        record = json.loads(GOLDEN.read_text(encoding="utf-8"))
        kept = {"decision_id": record["id"], "record": record}
        gateway.decisions = {
            "whole": {**kept, "outcome": OUTCOME},
            "running": {**kept, "outcome": None},
            "lost": {"decision_id": "lost", "record": None, "outcome": OUTCOME},
            "future": {**kept, "record": {**record, "unheard_of": 1}, "outcome": None},
        }
        yield gateway


@pytest.fixture
def explain(fake: FakeGateway) -> Callable[..., Result]:
    def run(*arguments: str) -> Result:
        words = ["explain", *arguments, "--url", fake.url]
        return CliRunner().invoke(build_app(words), words, env={"COLUMNS": "120"})

    return run


def test_a_decision_is_shown_with_all_that_it_rests_on(fake: FakeGateway, explain: Any) -> None:
    result = explain("whole")
    assert result.exit_code == 0, result.output
    shown = result.stdout
    for text in (
        "decision 0b7c6f0e5a1d4c0f",
        "admit: fits, on w1",
        "qwen3-32b",
        "412 tokens (estimated)",
        "2048 tokens (client_budget, cap)",
        "1302835 token²",
        "running-quantile/1; loop probability 10.0%",
        "the same decision",
        "wrapped_up",
        "waste.looped",
    ):
        assert text in shown
    rows = [line.replace("│", " ").split() for line in shown.splitlines()]
    for kept, verdict in zip(
        fake.decisions["whole"]["record"]["candidates"], VERDICTS, strict=True
    ):
        row = next(row for row in rows if row[:1] == [kept["load"]["view"]["worker_id"]])
        peak, limit = kept["peak_milliblocks"], kept["limit_milliblocks"]
        wanted = [f"{peak / 1000:.1f}", f"{limit / 1000:.1f}", "1500", f"{peak / limit:.0%}"]
        assert row[1:5] == wanted
        assert row[6:] == verdict


def test_quantiles_of_the_forecast_rise(explain: Any) -> None:
    lines = [line.replace("│", " ").split() for line in explain("whole").stdout.splitlines()]
    for name in ("thinking", "answer"):
        row = next(line for line in lines if line[:1] == [name] and len(line) == 5)
        figures = [int(figure) for figure in row[1:]]
        assert figures == sorted(figures)
        assert figures[0] < figures[-1]


def test_a_running_request_has_no_outcome_yet(explain: Any) -> None:
    assert "the request has not ended" in explain("running").stdout


def test_an_outcome_without_its_record_is_still_shown(explain: Any) -> None:
    shown = explain("lost").stdout
    assert "no record was kept" in shown
    assert "wrapped_up" in shown


def test_json_is_what_the_gateway_keeps(fake: FakeGateway, explain: Any) -> None:
    assert json.loads(explain("whole", "--json").stdout) == fake.decisions["whole"]


def test_an_unknown_decision_and_an_unknown_record_are_told(explain: Any) -> None:
    result = explain("nothing")
    assert result.exit_code == 1
    assert "no such decision is kept (HTTP 404)" in result.stderr
    assert json.loads(explain("nothing", "--json").stdout)["error"]["code"] == "not_found"
    result = explain("future")
    assert result.exit_code == 1
    assert "unheard_of" in result.stderr
    assert "--json" in result.stderr
