"""What a client that knows nothing of Governor gets is an ordinary OpenAI stream, byte by byte."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import pytest

from tests.running_stack import Answer, Gateway, Worker, chat_body, wait_for

pytestmark = pytest.mark.slow

QUESTION = "sum h8s2k9a1"


def test_a_stream_is_the_workers_own_event_by_event(
    gateway: Gateway, fleet: dict[str, Worker]
) -> None:
    answer = gateway.stream(QUESTION)
    with fleet["by1"].http.stream(
        "POST", "/v1/chat/completions", json=chat_body(QUESTION, stream=True)
    ) as reply:
        direct = Answer(dict(reply.headers), lines=reply.iter_lines()).read()
    assert answer.content == "20"
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in answer.chunks}) == 1
    # so nothing that only the gateway asked for (token ids, usage, its own members) is in it
    assert [without_identity(chunk) for chunk in answer.chunks] == [
        without_identity(chunk) for chunk in direct.chunks
    ]
    assert answer.raw[-1] == "data: [DONE]"
    assert answer.raw.count("data: [DONE]") == 1
    assert answer.headers["content-type"] == direct.headers["content-type"]


def without_identity(event: dict[str, Any]) -> dict[str, Any]:
    """An event without what differs between two requests."""
    return {name: value for name, value in event.items() if name not in ("id", "created")}


def test_a_whole_answer_holds_nothing_more_than_the_workers_own(
    gateway: Gateway, fleet: dict[str, Worker]
) -> None:
    direct = fleet["by1"].http.post("/v1/chat/completions", json=chat_body(QUESTION)).json()
    through = gateway.chat(QUESTION).whole
    assert through is not None

    assert through["usage"].pop("prompt_tokens_details") is not None
    assert direct["usage"].pop("prompt_tokens_details") is not None
    assert through["usage"] == direct["usage"]
    ours, theirs = through["choices"][0], direct["choices"][0]
    assert ours["finish_reason"] == theirs["finish_reason"] == "stop"
    assert present(ours["message"]) == present(theirs["message"])
    assert set(present(through)) <= set(present(direct))


def present(members: dict[str, Any]) -> dict[str, Any]:
    """Members that say something."""
    return {name: value for name, value in members.items() if value}


def test_what_the_client_asks_for_it_gets(gateway: Gateway) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    governor = {"explain": True}
    answer = gateway.stream(
        QUESTION, return_token_ids=True, stream_options=options, governor=governor
    )
    assert answer.usage["completion_tokens"] == len(answer.token_ids)
    assert sum(1 for chunk in answer.chunks if chunk.get("usage")) > 3
    block = answer.governor
    assert (block["cause"], block["landed"], block["exact"]) == ("completed", None, True)
    assert block["used_tokens"] == answer.usage["completion_tokens_details"]["reasoning_tokens"]
    assert block["decision_id"] == answer.id
    assert block["tenant"] == "default"
    # the block is the last event before the end
    assert "governor" in answer.chunks[-1]
    whole = gateway.chat(QUESTION, governor=governor).governor
    assert (whole["cause"], whole["used_tokens"]) == ("completed", block["used_tokens"])


def test_the_stream_arrives_as_it_is_made(gateway: Gateway) -> None:
    # An endless thinker: it cannot have ended when its first words arrive.
    with gateway.open("sum a1b2c3d4e5f6g7h8i9j1k2l3", max_completion_tokens=300) as answer:
        answer.read_thinking(5)
        assert gateway.metrics()["governor_streams_open"] >= 1
        answer.read()
    assert answer.done


class Connection:
    """A raw HTTP/1.1 connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.reader: IO[bytes] = self.socket.makefile("rb")

    def send(self, body: dict[str, Any], *, also: bytes = b"") -> None:
        self.socket.sendall(request(body) + also)

    def response(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the next response."""
        status = int(self.reader.readline().split()[1])
        headers: dict[str, str] = {}
        while line := self.reader.readline().rstrip():
            name, _, value = line.decode().partition(": ")
            headers[name.lower()] = value
        if headers.get("transfer-encoding") == "chunked":
            parts: list[bytes] = []
            while size := int(self.reader.readline(), 16):
                parts.append(self.reader.read(size))
                assert self.reader.read(2) == b"\r\n"
            assert self.reader.readline() == b"\r\n"
            return status, headers, b"".join(parts)
        return status, headers, self.reader.read(int(headers["content-length"]))


def request(body: dict[str, Any]) -> bytes:
    """The bytes of a chat completion."""
    content = json.dumps(body).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


@contextmanager
def connected(gateway: Gateway) -> Iterator[Connection]:
    connection = Connection(gateway.port)
    try:
        yield connection
    finally:
        connection.reader.close()
        connection.socket.close()


def answer_of(body: bytes) -> str:
    """The content of a complete stream."""
    events = body.decode().strip().split("\n\n")
    assert events[-1] == "data: [DONE]"
    deltas = [json.loads(e[6:])["choices"][0]["delta"] for e in events[:-1]]
    return "".join(delta.get("content") or "" for delta in deltas).strip()


def test_a_connection_is_kept_for_the_next_requests(gateway: Gateway) -> None:
    with connected(gateway) as connection:
        for question, wanted in (("sum h8s2", "10"), ("sum a1b2", "3")):
            connection.send(chat_body(question, stream=True))
            status, headers, body = connection.response()
            assert (status, answer_of(body)) == (200, wanted)
            assert headers.get("connection", "keep-alive") == "keep-alive"
        connection.send(chat_body("sum h8s2k9"))
        status, _, body = connection.response()
        assert json.loads(body)["choices"][0]["message"]["content"].strip() == "19"
        connection.socket.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert connection.response()[0] == 200


def test_pipelined_requests_are_answered_in_order_or_not_at_all(gateway: Gateway) -> None:
    with connected(gateway) as connection:
        # In one write: a server may answer the first and close (RFC 9112, 9.3.2).
        second = request(chat_body("sum a1b2", stream=True))
        connection.send(chat_body("sum h8s2k9", stream=True), also=second)
        assert answer_of(connection.response()[2]) == "19"
        if connection.reader.peek(1):  # type: ignore[attr-defined]
            assert answer_of(connection.response()[2]) == "3"


def test_a_request_sent_while_the_stream_runs_waits_for_it(gateway: Gateway) -> None:
    with connected(gateway) as connection:
        connection.send(chat_body("sum h8s2k9a1b2c3", stream=True))
        wait_for(lambda: connection.reader.peek(1), "the first bytes")  # type: ignore[attr-defined]
        connection.send(chat_body("sum a1b2", stream=True))
        assert answer_of(connection.response()[2]) == "25"
        assert answer_of(connection.response()[2]) == "3"
