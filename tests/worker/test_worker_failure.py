"""An engine that dies says so: running and new requests fail with an error, health turns 503."""

import json
from typing import Any

import pytest

pytestmark = pytest.mark.slow


def test_a_dead_engine_is_told_to_everybody(serve: Any) -> None:
    live = serve(num_blocks=64)
    try:
        run = live.engine._step.run

        def fail(*args: Any) -> Any:
            requests = args[1]
            if requests[0].position >= 5:
                raise RuntimeError("the step failed")
            return run(*args)

        live.engine._step.run = fail
        with live.lines("/v1/chat/completions", live.body("sum h8s2k9")) as lines:
            *_, error, done = list(lines)
        assert done == "[DONE]"
        assert json.loads(error)["error"]["code"] == 500
        assert "the step failed" in json.loads(error)["error"]["message"]
        live.wait(lambda: live.client.get("/health").status_code == 503, "health turns 503")
        reply = live.post("/v1/chat/completions", live.body("sum h8s2"))
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, 503)
        control = {"schema": "governor.control/1", "rid": "x", "attempt": 0, "op": "cut"}
        assert live.post("/governor/v1/control", {**control, "fence": 1}).status_code == 503
        assert live.metric("request_success_total", finished_reason="error") == 1
    finally:
        live.close()
