"""The local routes of a composed gateway: whose decisions are shown to whom, readiness, models."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from governor.core.keys import hash_of_key
from governor.gateway.app import build_app
from governor.gateway.settings import Settings
from governor.gateway.views import RuntimeView
from governor.gateway.wiring import Runtime, build

KEYS = {"acme": "gk-" + "a" * 43, "other": "gk-" + "b" * 43}


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    policy = tmp_path / "policy.yaml"
    lines = ["apiVersion: governor.dev/v1", "tenants:"]
    for tenant, key in KEYS.items():
        lines += [f"  {tenant}:", "    budget: 100", "    keys:"]
        lines += [f"      - hash: {hash_of_key(key)}"]
    policy.write_text("\n".join(lines) + "\n")
    return build(Settings(workers=("http://127.0.0.1:9",), policy_file=policy))


@pytest.fixture
async def client(runtime: Runtime) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(build_app(RuntimeView(runtime)))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as made:
        yield made


def bearer(tenant: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[tenant]}"}


async def test_a_tenant_sees_its_own_decisions_and_no_others(
    runtime: Runtime, client: httpx.AsyncClient
) -> None:
    runtime.gateway.parts.recorder.ended("d1", {"tenant": "acme", "cause": "completed"})
    path = "/v1/governor/decisions/d1"
    assert (await client.get(path, headers=bearer("acme"))).json()["outcome"]["tenant"] == "acme"
    assert (await client.get(path, headers=bearer("other"))).status_code == 404
    assert (await client.get(path)).status_code == 401


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models"),
        ("GET", "/v1/models/m"),
        ("GET", "/v1/governor/decisions/d1"),
        ("GET", "/v1/governor/requests/d1/signals"),
        ("POST", "/v1/governor/requests/d1/land"),
    ],
)
async def test_a_wrong_key_opens_nothing(client: httpx.AsyncClient, method: str, path: str) -> None:
    response = await client.request(method, path, headers={"authorization": "Bearer gk-wrong"})
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"


async def test_nobody_lands_a_request_that_does_not_run(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/governor/requests/d1/land", headers=bearer("acme"))
    assert response.status_code == 404


async def test_a_gateway_without_a_joined_worker_is_alive_and_not_ready(
    client: httpx.AsyncClient,
) -> None:
    assert (await client.get("/healthz")).status_code == 200
    ready = await client.get("/readyz")
    assert ready.status_code == 503
    assert ready.json()["workers"]["127.0.0.1:9"]["joined"] is False
    assert (await client.get("/v1/governor/capabilities")).json()["workers"] == {
        "127.0.0.1:9": None
    }


async def test_metrics_show_what_is_held(client: httpx.AsyncClient) -> None:
    text = (await client.get("/metrics")).text
    assert "governor_leases_active 0.0" in text
    assert 'governor_worker_fresh{worker="127.0.0.1:9"} 0.0' in text
