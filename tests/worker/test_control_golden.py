"""The worker reads the control messages that the gateway writes: contract (a), both sides."""

import json
from pathlib import Path

from governor.core.signals import decode_control
from governor_probes.embedded.control import parse_control

GOLDEN = Path(__file__).parent.parent / "data" / "contracts" / "control.json"


def test_worker_reads_what_the_gateway_writes() -> None:
    messages = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert {message["op"] for message in messages} == {"land", "budget", "cut"}
    for message in messages:
        ours, theirs = decode_control(message), parse_control(message)
        assert (theirs.rid, theirs.attempt, theirs.op, theirs.fence) == (
            ours.rid,
            ours.attempt,
            ours.op.value,
            ours.fence,
        )
        assert theirs.arg == (ours.arg or {})
