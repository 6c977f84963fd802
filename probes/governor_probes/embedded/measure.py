"""`python -m governor_probes.embedded.measure`: tokens per second of a running worker.

Each request is a sum of labelled digits, as the shipped model knows it; from 10 items on it thinks
until it is cut, so that every request brings its full number of tokens.
"""

import argparse
import asyncio
import json
import time
from random import Random
from string import ascii_lowercase

import httpx


def problem(seed: int, items: int) -> str:
    """A task of the shipped model: `sum` of labelled digits."""
    draw = Random(seed)
    labels = draw.sample(ascii_lowercase, items)
    return "sum " + "".join(f"{label}{draw.randint(0, 9)}" for label in labels)


async def one(client: httpx.AsyncClient, content: str, max_tokens: int) -> int:
    """Streams one request to its end; returns its output tokens."""
    body = {
        "messages": [{"role": "user", "content": content}],
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    tokens = 0
    async with client.stream("POST", "/v1/chat/completions", json=body) as reply:
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            if '"usage"' in line:
                tokens = int(json.loads(line[6:])["usage"]["completion_tokens"])
    return tokens


async def measure(url: str, concurrency: int, items: int, max_tokens: int) -> dict[str, float]:
    """Runs `concurrency` requests at once after one to warm up."""
    limits = httpx.Limits(max_connections=concurrency + 1)
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits) as client:
        await one(client, problem(0, items), 8)
        start = time.perf_counter()
        counts = await asyncio.gather(
            *(one(client, problem(i, items), max_tokens) for i in range(concurrency))
        )
        seconds = time.perf_counter() - start
    return {
        "concurrency": concurrency,
        "output_tokens": sum(counts),
        "seconds": round(seconds, 3),
        "tokens_per_s": round(sum(counts) / seconds, 1),
    }


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8081")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--items", type=int, default=10)
    parser.add_argument("--max-tokens", type=int, default=400)
    a = parser.parse_args()
    print(json.dumps(asyncio.run(measure(a.url, a.concurrency, a.items, a.max_tokens))))


if __name__ == "__main__":
    main()
