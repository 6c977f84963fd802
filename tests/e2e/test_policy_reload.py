"""A policy file that changes while the gateway runs is taken whole or not at all."""

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.running_stack import Gateway, Worker, wait_for

pytestmark = pytest.mark.slow

GOOD = "apiVersion: governor.dev/v1\ntenants: {default: {budget: 123}}\n"
BETTER = "apiVersion: governor.dev/v1\ntenants: {default: {budget: 234}}\n"
FIVE_ERRORS = """\
apiVersion: governor.dev/v1
tenants:
  default:
    budget: -1
    mode: enforced
    priority: urgent
    loops: {min_repeats: 1}
    colour: blue
"""


@pytest.fixture
def reloading(stack: Any, fleet: dict[str, Worker]) -> Iterator[Gateway]:
    (stack.folder / "reloading.yaml").write_text(GOOD, "utf-8")
    gateway = stack.gateway("reloading", [fleet["by1"]], GOVERNOR_POLICY_POLL_S="0.1")
    yield gateway
    gateway.assert_nothing_held()
    gateway.close()


def granted(gateway: Gateway) -> str:
    return gateway.chat("sum h8s2").headers["x-governor-budget-granted"]


@pytest.mark.parametrize("how", ["by the file's change", "by SIGHUP"])
def test_a_file_with_five_errors_changes_nothing_and_shows_all_five(
    stack: Any, reloading: Gateway, how: str
) -> None:
    before = reloading.readiness()["policy"]
    assert before["problems"] == []
    assert granted(reloading) == "123"
    reloading.policy.write_text(FIVE_ERRORS, "utf-8")
    if how == "by SIGHUP":
        reloading.process.send(signal.SIGHUP)
    policy = wait_for(lambda: problems(reloading), "the problems show")
    assert len(policy["problems"]) == 5
    for line, name in enumerate(("budget", "mode", "priority", "min_repeats", "colour"), 4):
        (problem,) = [text for text in policy["problems"] if f"line {line}," in text]
        assert name in problem
    assert policy["hash"] == before["hash"]
    assert reloading.readiness()["ready"]
    assert granted(reloading) == "123"
    assert reloading.metrics()["governor_policy_reloads_total"] >= 1
    reloading.policy.write_text(BETTER, "utf-8")
    if how == "by SIGHUP":
        reloading.process.send(signal.SIGHUP)
    wait_for(lambda: not problems(reloading), "the good file is taken")
    assert reloading.readiness()["policy"]["hash"] != before["hash"]
    assert granted(reloading) == "234"


def problems(gateway: Gateway) -> dict[str, Any] | None:
    """The policy's state while it has problems."""
    policy: dict[str, Any] = gateway.readiness()["policy"]
    return policy if policy["problems"] else None


def test_a_running_request_keeps_the_policy_that_it_began_with(reloading: Gateway) -> None:
    with reloading.open("sum q1w2e3r4t5y6u7i8o9", governor={"explain": True}) as answer:
        answer.read_thinking(1)
        reloading.policy.write_text(BETTER, "utf-8")
        reloading.process.send(signal.SIGHUP)
        answer.read()
    assert answer.governor["granted_tokens"] == 123
    wait_for(lambda: granted(reloading) == "234", "the file is taken")


def test_a_gateway_does_not_start_on_a_bad_policy(stack: Any, fleet: dict[str, Worker]) -> None:
    policy = stack.folder / "bad.yaml"
    policy.write_text(FIVE_ERRORS, "utf-8")
    gateway = Gateway(stack.folder / "bad.log", [fleet["by1"]], policy)
    try:
        assert gateway.process.wait() == 2
        told = gateway.process.tail()
        for line in range(4, 9):
            assert f"line {line}" in told
    finally:
        gateway.close()
