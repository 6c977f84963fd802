"""StreamMachine: the same client bytes whatever the reads, landing, merging, faults, one report."""

import json
from typing import Any

import pytest

from governor.core.exchange import (
    AbortUpstream,
    Acked,
    ClientClosed,
    EndResponse,
    LandNow,
    ReleaseUpstream,
    Retry,
    Send,
    SendControl,
    SendHead,
    Settle,
    SignalArrived,
    SignalsLost,
    StreamAction,
    StreamPlan,
    StreamReport,
    Tick,
    UpstreamClosed,
    UpstreamFault,
    WakeAt,
)
from governor.core.outcomes import Cause, LandingPath, ReasoningField, WrapUpReason
from governor.core.session import SessionLimits
from governor.core.signals import ControlAck, SignalRow
from governor.core.stream import StreamMachine

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
END_ID = 302


def plan(**changes: Any) -> StreamPlan:
    base: dict[str, Any] = {
        "rid": "r1",
        "attempt": 0,
        "endpoint": "chat",
        "client_streams": True,
        "limits": SessionLimits(None, None, False, True),
        "control_path": LandingPath.CONTROL,
        "think_end_ids": (END_ID,),
    }
    return StreamPlan(**(base | changes))


def event(delta: dict[str, Any] | None, **more: Any) -> bytes:
    choices = []
    if delta is not None:
        choice = {"index": 0, "delta": delta, "finish_reason": more.pop("finish", None)}
        if "token_ids" in more:
            choice["token_ids"] = more.pop("token_ids")
        choices = [choice]
    body = {"id": "chatcmpl-r1", "created": 5, "model": "m", "choices": choices, **more}
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


def usage(prompt: int, completion: int, reasoning: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def thinking_stream(thoughts: int = 6, answer: str = "42 ✓") -> list[bytes]:
    events = [event({"role": "assistant", "content": ""})]
    events += [event({"reasoning": f"step {i} é\n"}, token_ids=[i]) for i in range(thoughts)]
    events += [event({"content": answer}, token_ids=[END_ID, 7, 8])]
    events += [event({}, finish="stop")]
    events += [event(None, usage=usage(11, thoughts + 3, thoughts + 1)), b"data: [DONE]\n\n"]
    return events


def chunked(events: list[bytes]) -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(e), e) for e in events)
    return CHUNKED + body + b"0\r\n\r\n"


def run(machine: StreamMachine, data: bytes, at: int = 0) -> list[StreamAction]:
    return list(machine.receive(data, at))


def body_of(actions: list[StreamAction]) -> bytes:
    return b"".join(a.data for a in actions if isinstance(a, Send))


def report_of(actions: list[StreamAction]) -> StreamReport:
    reports = [a.report for a in actions if isinstance(a, Settle)]
    assert len(reports) == 1
    return reports[0]


def test_a_plain_stream_passes_byte_for_byte_and_settles_once() -> None:
    events = thinking_stream()
    actions = run(StreamMachine(plan()), chunked(events))
    assert body_of(actions) == b"".join(events)
    assert sum(isinstance(a, Send) for a in actions) == 1
    report = report_of(actions)
    assert report.cause is Cause.COMPLETED
    assert (report.prompt_tokens, report.reasoning_tokens, report.answer_tokens) == (11, 7, 2)
    assert report.exact
    assert report.answered
    assert ReleaseUpstream(True) in actions
    assert EndResponse() in actions


def test_every_split_of_the_bytes_gives_the_same_response_and_report() -> None:
    data = chunked(thinking_stream(3))
    stripped = plan(strip=(b"token_ids",), drop_usage_event=True)
    whole = run(StreamMachine(stripped), data)
    assert b"token_ids" not in body_of(whole)
    for cut in range(1, len(data)):
        machine = StreamMachine(stripped)
        actions = run(machine, data[:cut]) + run(machine, data[cut:])
        assert body_of(actions) == body_of(whole), cut
        assert report_of(actions) == report_of(whole), cut


def test_byte_by_byte_gives_the_same_response() -> None:
    data = chunked(thinking_stream())
    machine = StreamMachine(plan())
    actions = [a for i in range(len(data)) for a in run(machine, data[i : i + 1])]
    assert body_of(actions) == body_of(run(StreamMachine(plan()), data))
    assert report_of(actions).cause is Cause.COMPLETED


def test_fields_that_only_the_gateway_asked_for_never_reach_the_client() -> None:
    machine = StreamMachine(plan(strip=(b"token_ids",), drop_usage_event=True))
    actions = run(machine, chunked(thinking_stream()))
    assert b"token_ids" not in body_of(actions)
    assert b"usage" not in body_of(actions)
    assert b"[DONE]" in body_of(actions)
    assert report_of(actions).prompt_tokens == 11


@pytest.mark.parametrize(
    ("wanted", "present", "absent"),
    [
        (ReasoningField.REASONING_CONTENT, [b'"reasoning_content":"step'], [b'"reasoning":']),
        (ReasoningField.BOTH, [b'"reasoning_content":"step', b'"reasoning":"step'], []),
        (ReasoningField.REASONING, [b'"reasoning":"step'], [b"reasoning_content"]),
    ],
)
def test_reasoning_goes_out_under_the_member_that_policy_names(
    wanted: ReasoningField, present: list[bytes], absent: list[bytes]
) -> None:
    body = body_of(run(StreamMachine(plan(reasoning_field=wanted)), chunked(thinking_stream())))
    assert all(text in body for text in present)
    assert not any(text in body for text in absent)
    assert "é".encode() in body


def test_a_client_that_does_not_stream_gets_one_body() -> None:
    machine = StreamMachine(plan(client_streams=False, strip=(b"token_ids",), want_block=True))
    actions = run(machine, chunked(thinking_stream()))
    heads = [a for a in actions if isinstance(a, SendHead)]
    assert heads[0].status == 200
    body = json.loads(body_of(actions))
    assert heads[0].content_length == len(body_of(actions))
    message = body["choices"][0]["message"]
    assert message["content"] == "42 ✓"
    assert message["reasoning"].startswith("step 0 é\nstep 1")
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == 7
    assert body["object"] == "chat.completion"
    assert "token_ids" not in body["choices"][0]
    assert body["governor"]["cause"] == "completed"
    assert (b"x-governor-cause", b"completed") in heads[0].headers


def test_tool_calls_are_merged_for_a_client_that_does_not_stream() -> None:
    first = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}
    events = [
        event({"role": "assistant", "reasoning": "hm"}),
        event({"tool_calls": [first]}),
        event({"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]}),
        event({"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}),
        event({}, finish="tool_calls"),
        b"data: [DONE]\n\n",
    ]
    actions = run(StreamMachine(plan(client_streams=False)), chunked(events))
    choice = json.loads(body_of(actions))["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a":1}'}
    assert choice["message"]["content"] is None
    assert report_of(actions).answered


def row(position: int, tokens: list[int], flags: int = 0, entropy: float | None = 0.5) -> SignalRow:
    return SignalRow("r1", 0, position, tuple(tokens), entropy, 3.0, None, flags)


def test_a_loop_in_the_workers_signals_lands_the_request_once() -> None:
    machine = StreamMachine(plan(signals_expected=True))
    run(machine, CHUNKED)
    block = list(range(100, 130))
    controls: list[SendControl] = []
    tokens = list(range(50)) + block * 5
    for start in range(0, len(tokens), 8):
        part = tokens[start : start + 8]
        for action in machine.receive(SignalArrived(row(start + len(part), part)), start):
            if isinstance(action, SendControl):
                controls.append(action)
    assert [c.op for c in controls] == ["land"]
    assert controls[0].arg is not None
    assert controls[0].arg["reason"] == "loop"
    machine.receive(Acked(ControlAck("r1", 0, 1, "applied", 150, None)), 500)
    events = [event({"content": "42"}), event({}, finish="stop"), b"data: [DONE]\n\n"]
    rest = b"".join(b"%x\r\n%s\r\n" % (len(e), e) for e in events) + b"0\r\n\r\n"
    report = report_of(run(machine, rest))
    assert report.cause is Cause.WRAPPED_UP
    assert report.wrap_up_reason is WrapUpReason.LOOP
    assert report.landing_path is LandingPath.CONTROL
    assert report.loop is not None
    assert report.loop.period_tokens == 30


def test_a_loop_is_found_in_token_ids_of_the_stream_where_there_are_no_signals() -> None:
    machine = StreamMachine(plan())
    tokens = list(range(50)) + list(range(100, 130)) * 4
    events = [event({"reasoning": "x"}, token_ids=tokens[i : i + 10]) for i in range(0, 170, 10)]
    actions = run(machine, chunked([*events, event({}, finish="stop"), b"data: [DONE]\n\n"]))
    assert [a.op for a in actions if isinstance(a, SendControl)] == ["land"]


def test_when_the_signals_go_away_loops_are_found_in_the_text() -> None:
    machine = StreamMachine(plan(signals_expected=True))
    machine.receive(SignalsLost(), 0)
    lines = "".join(f"item {chr(97 + i)} gives {i * 7 % 13}; " for i in range(12))
    events = [event({"reasoning": lines}) for _ in range(8)]
    actions = run(machine, chunked([*events, event({}, finish="stop"), b"data: [DONE]\n\n"]))
    assert [a.op for a in actions if isinstance(a, SendControl)] == ["land"]
    assert not report_of(actions).exact


def test_a_landing_that_the_worker_refuses_is_counted_and_thinking_goes_on() -> None:
    machine = StreamMachine(plan())
    run(machine, chunked([event({"reasoning": "a"})])[:-5])
    assert any(
        isinstance(a, SendControl) for a in machine.receive(LandNow(WrapUpReason.OPERATOR), 1)
    )
    machine.receive(Acked(None, "connection refused"), 2)
    end = [event({"content": "4"}), event({}, finish="stop"), b"data: [DONE]\n\n"]
    rest = b"".join(b"%x\r\n%s\r\n" % (len(e), e) for e in end) + b"0\r\n\r\n"
    report = report_of(run(machine, rest))
    assert report.cause is Cause.COMPLETED
    assert report.landing_failures == 1


def test_without_a_landing_path_a_due_landing_is_counted_as_failed() -> None:
    machine = StreamMachine(plan(control_path=LandingPath.NONE))
    run(machine, CHUNKED)
    assert machine.receive(LandNow(WrapUpReason.OPERATOR), 1) == ()
    assert machine.session.landing_failures == 1


def test_the_deadline_is_armed_at_the_start_and_lands_at_its_time() -> None:
    machine = StreamMachine(plan(limits=SessionLimits(None, None, False, True, land_at_us=900)))
    assert machine.start(100) == (WakeAt(900),)
    run(machine, chunked([event({"reasoning": "a"})])[:-5], 200)
    assert machine.receive(Tick(), 800) == ()
    (control,) = machine.receive(Tick(), 900)
    assert isinstance(control, SendControl)
    assert control.arg is not None
    assert control.arg["reason"] == "deadline"


def test_a_worker_that_dies_mid_stream_ends_the_client_with_a_typed_error() -> None:
    machine = StreamMachine(plan())
    run(machine, chunked(thinking_stream())[:400])
    actions = list(machine.receive(UpstreamClosed(), 9))
    error = json.loads(body_of(actions).removeprefix(b"data: "))["error"]
    assert error["type"] == "upstream_error"
    assert EndResponse() in actions
    assert report_of(actions).cause is Cause.UPSTREAM_ERROR


@pytest.mark.parametrize("status", [429, 500, 503, 529])
def test_a_busy_or_dying_worker_is_retried_while_nothing_was_sent(status: int) -> None:
    data = b"HTTP/1.1 %d X\r\ncontent-length: 2\r\n\r\n{}" % status
    actions = run(StreamMachine(plan()), data)
    assert Retry(f"worker answered {status}", status) in actions
    assert not any(isinstance(a, SendHead | Settle) for a in actions)


def test_a_workers_refusal_of_the_request_reaches_the_client_unchanged() -> None:
    body = b'{"error":{"message":"bad","type":"BadRequestError","param":null,"code":400}}'
    data = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
    data += b"content-length: %d\r\n\r\n" % len(body) + body
    actions = run(StreamMachine(plan()), data)
    assert body_of(actions) == body
    assert next(a for a in actions if isinstance(a, SendHead)).status == 400
    assert report_of(actions).cause is Cause.UPSTREAM_ERROR


def test_a_connection_failure_before_the_head_asks_for_a_retry_and_can_be_given_up() -> None:
    machine = StreamMachine(plan())
    actions = list(machine.receive(UpstreamFault("refused"), 1))
    assert actions == [AbortUpstream(), Retry("refused", None)]
    assert report_of(list(machine.give_up(Cause.UPSTREAM_ERROR, 2))).cause is Cause.UPSTREAM_ERROR
    assert machine.give_up(Cause.UPSTREAM_ERROR, 3) == ()


def test_a_client_that_goes_away_aborts_the_worker_and_settles() -> None:
    machine = StreamMachine(plan())
    run(machine, chunked(thinking_stream())[:600])
    actions = list(machine.receive(ClientClosed(), 7))
    assert actions[0] == AbortUpstream()
    assert report_of(actions).cause is Cause.CLIENT_GONE
    assert machine.receive(ClientClosed(), 8) == ()
    assert machine.receive(b"anything", 8) == ()


def test_a_malformed_chunk_passes_through_and_is_counted() -> None:
    events = [event({"reasoning": "a"}), b"data: {not json}\n\n", *thinking_stream(1)]
    actions = run(StreamMachine(plan()), chunked(events))
    assert body_of(actions) == b"".join(events)
    assert report_of(actions).observe_faults == 1


def test_a_fault_of_ours_while_observing_never_breaks_the_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def explode(*_: object) -> None:
        raise RuntimeError("planted")

    machine = StreamMachine(plan())
    monkeypatch.setattr(machine.observer, "_take", explode)
    events = thinking_stream()
    actions = run(machine, chunked(events))
    assert body_of(actions) == b"".join(events)
    assert report_of(actions).observe_faults == len(events) - 1


def test_an_error_inside_the_stream_is_relayed_and_named() -> None:
    error = b'data: {"error":{"message":"overloaded","type":"overloaded_error","code":529}}\n\n'
    actions = run(StreamMachine(plan()), chunked([event({"reasoning": "a"}), error]))
    assert error in body_of(actions)
    assert report_of(actions).cause is Cause.UPSTREAM_ERROR


def test_the_governor_block_comes_before_done_when_asked_for() -> None:
    machine = StreamMachine(plan(want_block=True, describe=(("granted_tokens", 99),)))
    body = body_of(run(machine, chunked(thinking_stream())))
    lines = [line for line in body.split(b"\n\n") if line]
    assert lines[-1] == b"data: [DONE]"
    block = json.loads(lines[-2].removeprefix(b"data: "))["governor"]
    assert block["granted_tokens"] == 99
    assert block["used_tokens"] == 7


def test_a_looping_answer_is_cut_and_reported() -> None:
    machine = StreamMachine(plan())
    loop = [event({"content": "x"}, token_ids=list(range(200, 230))) for _ in range(6)]
    start = event({"content": "a"}, token_ids=[END_ID])
    actions = run(machine, chunked([start, *loop, event({}, finish="length"), b"data: [DONE]\n\n"]))
    assert [a.op for a in actions if isinstance(a, SendControl)] == ["cut"]
    assert report_of(actions).cause is Cause.CUT_OFF
