"""The results in benchmarks/README.md come from the files, whole, and never from a quick run."""

import json
import re
from pathlib import Path

import pytest

from benchmarks.results_table import HEADLINES, README, number, rendered, section, spread

TEXT = "before\n<!-- generated: results -->\nold figures\n<!-- end -->\nafter\n"
MAIN_JOB = {
    "command": "python -m benchmarks.main_job",
    "commit": "0123456789abcdef",
    "quick": False,
    "uncommitted_changes": False,
    "accuracy_direct": 0.9,
    "accuracy_direct_low": 0.85,
    "accuracy_direct_high": 0.94,
    "kv_area_direct": 40_123_456,
}


def write(folder: Path, name: str, found: dict[str, object]) -> None:
    (folder / f"{name}.json").write_text(json.dumps(found), encoding="utf-8")


def test_figures_stand_with_interval_command_and_commit(tmp_path: Path) -> None:
    write(tmp_path, "main_job", MAIN_JOB)
    text = rendered(TEXT, tmp_path)
    assert "| `accuracy_direct` | 0.9 | 0.85 to 0.94 |" in text
    assert "`python -m benchmarks.main_job`" in text
    assert "`0123456789ab`" in text
    assert "old figures" not in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")


def test_rendering_again_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, "main_job", MAIN_JOB)
    once = rendered(TEXT, tmp_path)
    assert rendered(once, tmp_path) == once


def test_what_was_not_measured_is_said(tmp_path: Path) -> None:
    write(tmp_path, "main_job", MAIN_JOB)
    text = rendered(TEXT, tmp_path)
    assert text.count("Not measured.") == len(HEADLINES) - 1
    assert "| `lost_correct` | not in the file |  |" in text


def test_uncommitted_changes_are_said() -> None:
    assert "uncommitted changes" in section("main_job", {**MAIN_JOB, "uncommitted_changes": True})
    assert "uncommitted changes" not in section("main_job", MAIN_JOB)


def test_a_quick_run_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "landing", {**MAIN_JOB, "quick": True})
    with pytest.raises(ValueError, match="landing"):
        rendered(TEXT, tmp_path)


def test_a_text_without_a_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="exactly one place"):
        rendered("no markers", tmp_path)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "none"), (0, "0"), (1234567, "1,234,567"), (0.0123456, "0.0123"), (98765.4, "98,765")],
)
def test_numbers(value: float | None, shown: str) -> None:
    assert number(value) == shown


def test_ranges_over_rounds_count_as_a_spread() -> None:
    assert spread({"a": 1, "a_least": 0, "a_most": 2}, "a") == "0 to 2"
    assert spread({"a": 1, "a_low": 0}, "a") == ""


# Their names say it all.
PLAIN = {"problems", "thinking_tokens_total", "latency_p50_s", "latency_p95_s"}


def test_every_headline_is_explained() -> None:
    text = README.read_text(encoding="utf-8").split("## Results")[0]
    explained = set(re.findall(r"`([a-z_N0-9]+)`", text))
    for names in HEADLINES.values():
        for name in names:
            stem = re.sub(r"_interval_\d+$", "_interval_N", name)
            stem = re.sub(r"_(direct|governed)$", "", stem)
            known = {stem, f"{stem}_direct", f"{stem}_on"}
            assert known & explained or stem in PLAIN, name
