"""Control messages: landing with boundary grace, a budget changed in flight, cut, fences."""

import json
import uuid
from typing import Any

import pytest

pytestmark = pytest.mark.slow
END, NEWLINE = 302, 201
ENDLESS = "sum a1b2c3d4e5f6g7h8i9j9k9"


class Open:
    """An endless request that has produced `warm` tokens and is still running."""

    def __init__(self, live: Any, warm: int = 10, **fields: Any) -> None:
        self.rid = uuid.uuid4().hex
        self._live = live
        self._warm = warm
        self.ids: list[int] = []
        self.finish_reason: str | None = None
        self._body = live.body(
            ENDLESS, request_id=self.rid, return_token_ids=True, max_tokens=3000, **fields
        )

    def run(self, act: Any) -> Any:
        """Opens the stream, calls `act` once warm, reads to the end."""
        result: Any = None
        acted = False
        with self._live.lines("/v1/chat/completions", self._body) as lines:
            for line in lines:
                if line == "[DONE]":
                    break
                for choice in json.loads(line)["choices"]:
                    self.ids += choice.get("token_ids") or []
                    self.finish_reason = choice["finish_reason"] or self.finish_reason
                if not acted and len(self.ids) >= self._warm:
                    acted, result = True, act()
        return result


def test_landing_ends_at_a_boundary_within_the_grace(live: Any) -> None:
    request = Open(live)
    ack = request.run(
        lambda: live.control(
            request.rid, "land", {"grace_tokens": 40, "reason": "loop", "text": None}
        )
    )
    assert ack["status"] == "applied"
    end = request.ids.index(END)
    assert request.ids[end - 1] == NEWLINE
    assert ack["position"] <= end <= ack["position"] + 12  # a line of this task is short
    assert request.finish_reason == "stop"


def test_landing_without_grace_ends_at_once(live: Any) -> None:
    request = Open(live)
    ack = request.run(
        lambda: live.control(request.rid, "land", {"grace_tokens": 0, "reason": "deadline"})
    )
    assert request.ids.index(END) - ack["position"] in (0, 1)


def test_a_landing_text_of_its_own_is_written(live: Any) -> None:
    request = Open(live)
    arg = {"grace_tokens": 40, "reason": "operator", "text": "time is up\n</think>\n\n"}
    request.run(lambda: live.control(request.rid, "land", arg))
    assert "time is up\n</think>\n\n" in live.engine.vocabulary.decode(request.ids)


def test_a_second_landing_is_already_landing_or_over(live: Any) -> None:
    request = Open(live)
    arg = {"grace_tokens": 2000, "reason": "loop"}

    def twice() -> Any:
        # The grace begins inside a line: both messages arrive before its end at best, and a
        # landing that is over answers so.
        return [live.control(request.rid, "land", arg, fence=f) for f in (4, 4)]

    first, second = request.run(twice)
    assert first["status"] == "applied"
    assert second["status"] in ("already_landing", "thinking_over")
    assert request.ids.count(END) == 1


def test_a_budget_can_be_set_in_flight(live: Any) -> None:
    request = Open(live)
    ack = request.run(
        lambda: live.control(request.rid, "budget", {"tokens": 400, "grace_tokens": 30})
    )
    assert ack["status"] == "applied"
    assert 370 < request.ids.index(END) <= 400


def test_a_budget_can_grow_in_flight(live: Any) -> None:
    request = Open(live, warm=2, thinking_token_budget=300)
    ack = request.run(
        lambda: live.control(request.rid, "budget", {"tokens": 350, "grace_tokens": 0})
    )
    assert ack["status"] == "applied"
    assert request.ids.index(END) in (350, 351)


def test_a_budget_below_the_present_count_ends_thinking_now(live: Any) -> None:
    request = Open(live, warm=60)
    ack = request.run(
        lambda: live.control(request.rid, "budget", {"tokens": 20, "grace_tokens": 0})
    )
    assert request.ids.index(END) - ack["position"] in (0, 1)


def test_cut_finishes_with_length_and_frees_everything(live: Any) -> None:
    request = Open(live)
    ack = request.run(lambda: live.control(request.rid, "cut", None))
    assert ack["status"] == "applied"
    assert request.finish_reason == "length"
    assert len(request.ids) == ack["position"]
    assert live.metric("num_requests_running") == 0
    assert live.metric("kv_cache_usage_perc") == 0


def test_a_lower_fence_is_stale_and_an_equal_one_is_not(live: Any) -> None:
    request = Open(live)

    def act() -> Any:
        arg = {"tokens": 900, "grace_tokens": 0}
        fences = (7, 6, 7)
        acks = [live.control(request.rid, "budget", arg, fence=f)["status"] for f in fences]
        live.control(request.rid, "cut", None, fence=8)
        return acks

    assert request.run(act) == ["applied", "stale_fence", "applied"]


def test_after_thinking_and_after_the_end_the_answer_says_so(live: Any) -> None:
    request = Open(live)
    request.run(lambda: live.control(request.rid, "cut", None))
    assert live.control(request.rid, "land", {"grace_tokens": 0})["status"] == "unknown_request"
    answering = Open(live, warm=2, thinking_token_budget=0, ignore_eos=True)

    def act() -> Any:
        ack = live.control(answering.rid, "land", {"grace_tokens": 0, "reason": "loop"})
        live.control(answering.rid, "cut", None, fence=2)
        return ack

    assert answering.run(act)["status"] in ("thinking_over", "already_landing")


def test_the_attempt_is_part_of_the_address(live: Any) -> None:
    request = Open(live)

    def act() -> Any:
        ack = live.control(request.rid, "cut", None, attempt=1)
        live.control(request.rid, "cut", None)
        return ack

    assert request.run(act)["status"] == "unknown_request"


def test_the_cores_messages_are_understood(live: Any) -> None:
    from governor.core.signals import (
        Control,
        ControlOp,
        ControlStatus,
        decode_ack,
        encode_control,
    )

    request = Open(live)
    land = {"grace_tokens": 9, "text": None, "reason": "loop"}

    def act() -> Any:
        message = encode_control(Control(request.rid, 0, ControlOp.LAND, land, 3))
        return decode_ack(live.post("/governor/v1/control", message).json())

    ack = request.run(act)
    assert (ack.status, ack.fence) == (ControlStatus.APPLIED, 3)


@pytest.mark.parametrize(
    ("op", "arg"),
    [("land", {"grace_tokens": -1}), ("budget", {}), ("stop", None), ("land", {"text": 3})],
)
def test_bad_arguments_are_invalid_and_change_nothing(live: Any, op: str, arg: Any) -> None:
    request = Open(live)

    def act() -> Any:
        ack = live.control(request.rid, op, arg)
        live.control(request.rid, "cut", None)
        return ack

    ack = request.run(act)
    assert (ack["status"], bool(ack["detail"])) == ("invalid", True)


def test_what_is_no_message_is_a_400(live: Any) -> None:
    good = {"schema": "governor.control/1", "rid": "x", "attempt": 0, "op": "cut", "fence": 1}
    for change in ({"schema": "x/1"}, {"rid": ""}, {"attempt": True}, {"fence": "1"}, {"arg": 3}):
        assert live.post("/governor/v1/control", {**good, **change}).status_code == 400
