"""What Governor does not know it relays as it is: other paths, models, workers' errors."""

import pytest

from tests.running_stack import Gateway, Worker

pytestmark = pytest.mark.slow


def test_other_paths_are_the_workers_own_answers(
    gateway: Gateway, fleet: dict[str, Worker]
) -> None:
    worker = fleet["by1"].http
    body = {"model": "tiny-reasoner", "prompt": "sum é"}
    assert (
        gateway.http.post("/tokenize", json=body).json()
        == worker.post("/tokenize", json=body).json()
    )
    assert gateway.http.get("/version").json() == worker.get("/version").json()
    tokens = gateway.http.post("/tokenize", json=body).json()["tokens"]
    back = {"model": "tiny-reasoner", "tokens": tokens}
    assert gateway.http.post("/detokenize", json=back).json() == {"prompt": "sum é"}


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_an_unknown_path_is_the_workers_404(
    gateway: Gateway, fleet: dict[str, Worker], method: str
) -> None:
    for path in ("/v1/foo", "/v1/foo/bar?x=1&y=%20"):
        direct = fleet["by1"].http.request(method, path)
        through = gateway.http.request(method, path)
        assert (through.status_code, through.content) == (404, direct.content)
        assert through.headers["content-type"] == direct.headers["content-type"]
        assert through.headers["x-governor-decision"]


def test_a_worker_error_comes_through(gateway: Gateway, fleet: dict[str, Worker]) -> None:
    # `stop` is the worker's to check.
    body = {
        "model": "tiny-reasoner",
        "messages": [{"role": "user", "content": "sum h8s2"}],
        "stop": "",
    }
    for streams in (True, False):
        sent = {**body, "stream": streams}
        direct = fleet["by1"].http.post("/v1/chat/completions", json=sent)
        through = gateway.http.post("/v1/chat/completions", json=sent)
        assert (through.status_code, through.json()) == (400, direct.json())


def test_a_head_request_has_no_body(gateway: Gateway) -> None:
    reply = gateway.http.head("/v1/foo")
    assert (reply.status_code, reply.content) == (404, b"")
    # the connection is still in step
    assert gateway.http.get("/version").status_code == 200


def test_a_model_without_a_family_is_relayed_and_never_landed(
    gateway: Gateway, fleet: dict[str, Worker]
) -> None:
    asked = {"model": "somebodys-model", "max_completion_tokens": 300}
    answer = gateway.stream("sum q1w2e3r4t5y6u7i8o9p1a2s3", **asked)
    outcome = gateway.decision(answer)["outcome"]
    assert (outcome["landed"], outcome["worker"]) == (None, fleet["unknown"].url[7:])
    assert (answer.finish_reason, answer.done) == ("length", True)
    assert answer.headers["x-governor-budget-reason"] == "not_governed"
    plain = gateway.chat("sum h8s2", model="somebodys-model")
    assert plain.content == "10"
    assert plain.reasoning


def test_a_budget_for_a_model_without_a_family_reaches_the_engine_as_it_came(
    gateway: Gateway,
) -> None:
    answer = gateway.chat("sum h8s2k9a1b2", model="somebodys-model", thinking_token_budget=10)
    assert answer.content
    assert answer.usage["completion_tokens_details"]["reasoning_tokens"] <= 11


def test_local_paths_are_not_relayed(gateway: Gateway) -> None:
    assert gateway.http.get("/healthz").json() == {"status": "ok"}
    assert gateway.readiness()["ready"]
    capabilities = gateway.http.get("/v1/governor/capabilities").json()["workers"]
    assert len(capabilities) == 4
    for state in capabilities.values():
        assert state["budget_paths"] == ["native", "control"]
    assert gateway.http.get("/v1/governor/decisions/none").status_code == 404
