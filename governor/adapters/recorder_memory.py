"""MemoryRecorder: the last decisions and their outcomes, for explaining. Lost with the process."""

from collections import OrderedDict
from typing import Any

from governor.core.plain import to_plain
from governor.core.record import DecisionRecord


class MemoryRecorder:
    """See `governor.ports.Recorder`. Keeps `most` decisions; encodes only when asked."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[str, tuple[DecisionRecord | None, dict[str, Any] | None]] = (
            OrderedDict()
        )

    def decided(self, record: DecisionRecord) -> None:
        """Keep a decision."""
        _, outcome = self._kept.pop(record.id, (None, None))
        self._put(record.id, record, outcome)

    def ended(self, decision_id: str, outcome: dict[str, Any]) -> None:
        """Keep an outcome beside its decision."""
        record, _ = self._kept.pop(decision_id, (None, None))
        self._put(decision_id, record, outcome)

    def _put(
        self, decision_id: str, record: DecisionRecord | None, outcome: dict[str, Any] | None
    ) -> None:
        self._kept[decision_id] = (record, outcome)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def find(self, decision_id: str) -> dict[str, Any] | None:
        """Record and outcome in plain form; a part that is not kept is None."""
        kept = self._kept.get(decision_id)
        if kept is None:
            return None
        record, outcome = kept
        return {
            "decision_id": decision_id,
            "record": None if record is None else to_plain(record),
            "outcome": outcome,
        }
