"""One fleet of real processes for all end-to-end tests, and their logs beside a failure."""

import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest

from governor.adapters.keys import IssuedKey, issue_key
from tests.running_stack import START_S, Gateway, Process, Worker, wait_for

STACK = pytest.StashKey["Stack"]()

# Every tenant has a key; who brings none is `default`. The numbers suit the shipped model: nothing
# lands by budget unless a test asks for it.
TENANTS = {
    "default": "{budget: 3000, effort: {low: 48}}",
    "keyed": "{budget: 3000, allow_models: [tiny-reasoner]}",
    "noloops": "{budget: 3000, loops: false}",
    "small": "{budget: 40}",
    "off": "{budget: 40, mode: off}",
    "observe": "{budget: 40, mode: observe}",
    "shadow": "{budget: 40, mode: shadow}",
    "renamed": "{budget: 3000, output: {reasoning_field: reasoning_content}}",
    "both": "{budget: 3000, output: {reasoning_field: both}}",
    "single": "{budget: 3000, loops: false, quota: {concurrent: 1}}",
    "impatient": "{budget: 3000, loops: false, quota: {concurrent: 1}, "
    "queue: {ttl: 500ms, max_queued: 1}}",
    "patient": "{budget: 3000, loops: false, quota: {concurrent: 1}, queue: {commit_after: 100ms}}",
    "committed": "{budget: 3000, loops: false, quota: {concurrent: 1}, "
    "queue: {commit_after: 100ms, ttl: 500ms}}",
    "first": "{budget: 200, priority: critical}",
}


@dataclass
class Stack:
    """The processes that run, and the keys that the policy knows."""

    folder: Path
    keys: dict[str, IssuedKey] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)
    open: ExitStack = field(default_factory=ExitStack)

    def worker(self, name: str, **settings: object) -> Worker:
        """Start a worker; it is not ready yet."""
        worker = Worker(self.folder / f"{name}.log", **settings)
        self.processes.append(worker.process)
        self.open.callback(worker.close)
        return worker

    def gateway(self, name: str, workers: list[Worker], *options: str, **env: str) -> Gateway:
        """Start a gateway with a policy file of its own, and wait until it is ready."""
        policy = self.folder / f"{name}.yaml"
        if not policy.exists():
            policy.write_text(self.policy(), "utf-8")
        gateway = Gateway(self.folder / f"{name}.log", workers, policy, *options, **env)
        self.processes.append(gateway.process)
        self.open.callback(gateway.close)
        wait_for(gateway.ready, f"{name} is ready", START_S)
        return gateway

    def policy(self) -> str:
        """The policy of all tenants."""
        lines = ["apiVersion: governor.dev/v1", "anonymous_tenant: default"]
        lines += ["defaults: {answer_reserve: 16, landing: {grace: 16, unlanded_share: 0%}}"]
        lines += ["tenants:"]
        for name, text in TENANTS.items():
            key = self.keys.setdefault(name, issue_key())
            lines.append(f"  {name}: {{keys: [{key.key_hash!r}], {text[1:]}")
        return "\n".join(lines) + "\n"

    def bearer(self, tenant: str) -> dict[str, str]:
        """The header with a tenant's key."""
        return {"authorization": f"Bearer {self.keys[tenant].key}"}


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("stack"))
    pytestconfig.stash[STACK] = stack
    with stack.open:
        yield stack
        # All at once; closing then waits for each.
        for process in stack.processes:
            if process.running:
                process.send(signal.SIGTERM)


@pytest.fixture(scope="session")
def fleet(stack: Stack) -> dict[str, Worker]:
    """Workers that differ in name and in tokens per chunk, and one whose model nobody knows."""
    workers = {
        "by1": stack.worker("by1", num_blocks=2048),
        "by3": stack.worker(
            "by3", num_blocks=512, stream_interval=3, served_model_name="tiny-reasoner-by3"
        ),
        "by20": stack.worker(
            "by20", num_blocks=512, stream_interval=20, served_model_name="tiny-reasoner-by20"
        ),
        "unknown": stack.worker("unknown", num_blocks=512, served_model_name="somebodys-model"),
    }
    for name, worker in workers.items():
        wait_for(worker.ready, f"worker {name} is ready", START_S)
    return workers


@pytest.fixture(scope="session")
def main_gateway(stack: Stack, fleet: dict[str, Worker]) -> Gateway:
    return stack.gateway("main", list(fleet.values()))


@pytest.fixture
def gateway(main_gateway: Gateway) -> Iterator[Gateway]:
    """The gateway over the whole fleet; each test leaves nothing behind on it."""
    yield main_gateway
    main_gateway.assert_nothing_held()


@pytest.fixture
def client(gateway: Gateway, stack: Stack) -> Iterator[openai.OpenAI]:
    """The official client, as tenant `default`."""
    key = stack.keys["default"].key
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0) as client:
        yield client


@pytest.fixture
def as_tenant(stack: Stack) -> Callable[[str], dict[str, str]]:
    """Headers of a tenant."""
    return stack.bearer


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of every process's output beside a failure."""
    report = yield
    stack = item.config.stash.get(STACK, None)
    if report.failed and stack is not None:
        for process in stack.processes:
            report.sections.append((process.log.name, process.tail()))
    return report
