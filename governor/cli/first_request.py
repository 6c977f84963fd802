"""The first request of a new gateway: asks an endless checker and shows what Governor did."""

import asyncio
import time
from typing import Any

import httpx
from rich.console import Console

# Ten labelled digits: from ten items on the shipped model holds the right answer and checks for
# ever, so that this request ends only because it is landed. The digits add up to 46.
QUESTION = "sum a3b7c1d9e2f5g8h4i6j1"
ANSWER = "46"
READY_TIMEOUT_S = 60.0


async def first_request(url: str, console: Console) -> bool:
    """Ask and print. True when an answer came."""
    async with httpx.AsyncClient(base_url=url, timeout=120.0) as client:
        if not await _ready(client):
            console.print("[red]no worker became ready[/]")
            return False
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        body = {
            "model": model,
            "messages": [{"role": "user", "content": QUESTION}],
            "governor": {"explain": True},
        }
        started = time.perf_counter()
        response = await client.post("/v1/chat/completions", json=body)
        took_s = time.perf_counter() - started
    if response.status_code != 200:
        console.print(f"[red]first request: HTTP {response.status_code}[/] {response.text}")
        return False
    return _show(response.json(), took_s, console)


async def _ready(client: httpx.AsyncClient) -> bool:
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            while (await client.get("/readyz")).status_code != 200:
                await asyncio.sleep(0.1)
    except (TimeoutError, httpx.HTTPError):
        return False
    return True


def _show(body: dict[str, Any], took_s: float, console: Console) -> bool:
    message, told = body["choices"][0]["message"], body.get("governor") or {}
    answer = (message.get("content") or "").strip()
    thinking = message.get("reasoning") or ""
    used, granted = told.get("used_tokens"), told.get("granted_tokens")
    console.print()
    console.print(f"[bold]first request[/]  {QUESTION}", highlight=False)
    console.print(f"  thought       {used} tokens, {len(thinking.splitlines())} lines")
    console.print(f"  granted       {granted} tokens ({told.get('granted_reason')})")
    console.print(f"  landed        {told.get('landed') or 'no, the model ended by itself'}")
    console.print(f"  cause         {told.get('cause')}")
    console.print(f"  answer        [bold]{answer or 'none'}[/] (right: {ANSWER})")
    console.print(f"  took          {took_s:.2f} s, decision {told.get('decision_id')}")
    console.print()
    return bool(answer)
