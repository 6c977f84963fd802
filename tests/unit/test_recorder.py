"""MemoryRecorder: the last decisions and outcomes, bounded, together in whatever order."""

import json
from dataclasses import replace
from pathlib import Path

from governor.adapters.recorder_memory import MemoryRecorder
from governor.core.plain import from_plain, to_plain
from governor.core.record import DecisionRecord

GOLDEN = Path(__file__).parent.parent / "data" / "contracts" / "decision_record.json"


def record(decision_id: str) -> DecisionRecord:
    golden = from_plain(DecisionRecord, json.loads(GOLDEN.read_text(encoding="utf-8")))
    assert isinstance(golden, DecisionRecord)
    return replace(golden, id=decision_id)


def test_a_decision_and_its_outcome_are_found_in_plain_form() -> None:
    recorder = MemoryRecorder(10)
    recorder.decided(record("a"))
    assert recorder.find("a") == {
        "decision_id": "a",
        "record": to_plain(record("a")),
        "outcome": None,
    }
    recorder.ended("a", {"cause": "completed"})
    found = recorder.find("a")
    assert found is not None
    assert found["outcome"] == {"cause": "completed"}
    assert found["record"]["id"] == "a"
    json.dumps(found)


def test_a_later_attempt_replaces_the_decision_and_keeps_the_outcome() -> None:
    recorder = MemoryRecorder(10)
    recorder.ended("a", {"cause": "completed"})
    recorder.decided(record("a"))
    recorder.decided(replace(record("a"), worker_id="elsewhere"))
    found = recorder.find("a")
    assert found is not None
    assert found["record"]["worker_id"] == "elsewhere"
    assert found["outcome"] == {"cause": "completed"}


def test_the_oldest_goes_first_and_the_bound_holds() -> None:
    recorder = MemoryRecorder(3)
    for number in range(5):
        recorder.decided(record(f"d{number}"))
        recorder.ended(f"d{number}", {})
    assert [recorder.find(f"d{number}") is None for number in range(5)] == [
        True,
        True,
        False,
        False,
        False,
    ]
    recorder.ended("d2", {"cause": "completed"})
    recorder.decided(record("new"))
    assert recorder.find("d2") is not None, "what has just changed is the youngest"
    assert recorder.find("d3") is None


def test_what_is_not_kept_is_none() -> None:
    assert MemoryRecorder(3).find("never") is None
    nothing = MemoryRecorder(0)
    nothing.decided(record("a"))
    assert nothing.find("a") is None
