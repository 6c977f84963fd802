"""Paths that are not ours: a demand for admission, and the request as it came minus what is the
hop's or the client's secret."""

from typing import Any

import pytest

from governor.gateway.exchange import ClientExchange
from governor.gateway.other_paths import other_body, other_request
from governor.gateway.workers import worker_at


def exchange(body: bytes = b"", method: str = "POST", **headers: str) -> ClientExchange:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    transport: Any = None
    return ClientExchange(
        transport,
        method,
        "/v1/embeddings?a=1",
        named,
        body,
        keep_alive=True,
        finished=lambda: None,
    )


def sent(made: ClientExchange, key: str | None = "worker-key") -> tuple[str, dict[str, str], bytes]:
    head, _, body = other_body(made, worker_at("http://w:8000/prefix/", key)).partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = [line.partition(": ") for line in lines]
    assert len({name for name, _, _ in pairs}) == len(pairs)
    return first, {name: value for name, _, value in pairs}, body


def test_the_request_goes_on_as_it_came_with_the_workers_credentials() -> None:
    first, headers, body = sent(
        exchange(
            b"\x00raw",
            content_type="application/octet-stream",
            host="gateway",
            authorization="Bearer client-key",
            x_api_key="client-key",
            cookie="a=b",
            connection="keep-alive, X-Hop",
            x_hop="1",
            transfer_encoding="chunked",
            x_governor_priority="high",
            traceparent="00-1",
        )
    )
    assert first == "POST /prefix/v1/embeddings?a=1 HTTP/1.1"
    assert body == b"\x00raw"
    assert headers == {
        "host": "w:8000",
        "content-type": "application/octet-stream",
        "traceparent": "00-1",
        "authorization": "Bearer worker-key",
        "content-length": "4",
    }


def test_without_a_key_of_the_worker_no_credentials_are_sent() -> None:
    _, headers, _ = sent(exchange(method="GET", authorization="Bearer client-key"), key=None)
    assert "authorization" not in headers


@pytest.mark.parametrize(
    ("body", "model", "limit"),
    [
        (b'{"model": "m", "max_tokens": 50}', "m", 50),
        (b'{"model": "m", "max_output_tokens": 9, "max_tokens": 50}', "m", 9),
        (b'{"model": "", "max_tokens": true}', "any", 1),
        (b'{"max_tokens": -5}', "any", 1),
        (b"not json", "any", 1),
        (b"\xff\xfe", "any", 1),
        (b"[1]", "any", 1),
        (b"[" * 100_000, "any", 1),
        (b"", "any", 1),
    ],
)
def test_the_demand_says_what_the_body_says_and_never_fails(
    body: bytes, model: str, limit: int
) -> None:
    parsed = other_request(exchange(body), "d1", "tenant", 7, "any")
    assert parsed.endpoint == "other"
    assert (parsed.demand.model, parsed.demand.max_completion_tokens) == (model, limit)
    assert (parsed.demand.tenant, parsed.demand.decision_id) == ("tenant", "d1")
    assert (parsed.demand.arrived_us, parsed.demand.thinks) == (7, False)
    assert parsed.demand.prompt_tokens >= 1
    assert not parsed.demand.landable


@pytest.mark.parametrize(
    "url", ["https://w", "w:8000", "http://", "http://w:port", "unix:///x", "http://w:99999"]
)
def test_a_worker_url_of_another_form_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        worker_at(url, None)


@pytest.mark.parametrize(
    ("url", "name", "host"),
    [
        ("http://w", "w:80", "w"),
        ("http://w:8000/", "w:8000", "w:8000"),
        ("http://user:secret@w:8000/p", "w:8000", "w:8000"),
        ("http://[::1]:8000", "::1:8000", "[::1]:8000"),
    ],
)
def test_a_worker_has_its_address_and_tells_no_secret(url: str, name: str, host: str) -> None:
    worker = worker_at(url, None)
    assert (worker.worker_id, worker.host_header) == (name, host)


def test_facts_of_a_worker_that_was_not_joined_claim_nothing() -> None:
    facts = worker_at("http://w", None).facts()
    assert facts.features == frozenset()
    assert (facts.think_end_ids, facts.wrap_up_tokens, facts.signals_alive) == ((), 0, False)
    assert facts.us_per_token > 0
