"""Admission: 64 requests at once on a KV pool that holds 16 of them, with admission on and off.

16 requests fill the pool and 48 of two tenants and two priority bands arrive into it. Either side
has its own worker and gateway, so that neither learns from the other's load; both have seen some
requests before, get the same crowds, and take turns in going first. Measured apart: gateways that
have seen nothing, and fairness, by clients of both tenants that always have work waiting. Engine
preemptions are the worker's own count.

    python -m benchmarks.admission --json benchmarks/results/admission.json
"""

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.admission_figures import Measured, Run, Sample, figures, wanted
from benchmarks.admission_load import (
    BLOCK_TOKENS,
    POOL_BLOCKS,
    REQUESTS,
    WEIGHTS,
    Asked,
    Served,
    crowd,
    policy_text,
    without_end,
)
from benchmarks.client import Reply, chat, http_client, run_all
from benchmarks.harness import GatewayPlan, Stack, WorkerPlan, policy
from benchmarks.report import Figure, argument_parser, metadata, write_json

SAMPLE_S = 0.05
BUSY_S = 30.0
# Several tokens a chunk leave the processor to the engine.
SETTINGS = {
    "num_blocks": POOL_BLOCKS,
    "block_size": BLOCK_TOKENS,
    "max_num_seqs": REQUESTS,
    "stream_interval": 8,
}
SAMPLED = {
    "vllm:kv_cache_usage_perc": "kv_usage",
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:num_preemptions_total": "preemptions",
}
# Crowds of cold rounds and requests of the warm-up are others than those of the pairs.
COLD_SEED, WARM_UP_SEED = 10_000, 20_000


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    warm_up: int
    pairs: int
    cold: int
    loop_s: float


FULL = Size(warm_up=40, pairs=7, cold=5, loop_s=60.0)
QUICK = Size(warm_up=8, pairs=1, cold=0, loop_s=4.0)


def sample_of(metrics: str, at_s: float, base: int = 0) -> Sample:
    """A look from a Prometheus text; `base` preemptions happened before. Raises KeyError where a
    metric is missing.

    Only four lines of the exposition matter; parsing all of it would load the machine.
    """
    found: dict[str, float] = {}
    for line in metrics.splitlines():
        name, _, rest = line.partition("{")
        if name in SAMPLED:
            found[SAMPLED[name]] = float(rest.rsplit(" ", 1)[1])
    return Sample(
        at_s=at_s,
        kv_usage=found["kv_usage"],
        running=int(found["running"]),
        waiting=int(found["waiting"]),
        preemptions=int(found["preemptions"]) - base,
    )


@dataclass(frozen=True, slots=True)
class Site:
    """One gateway with its worker, and a client for both."""

    client: httpx.AsyncClient
    gateway: str
    worker: str

    async def look(self, start_s: float = 0.0, base: int = 0) -> Sample:
        """The worker at this moment."""
        reply = await self.client.get(f"{self.worker}/metrics")
        return sample_of(reply.text, time.perf_counter() - start_s, base)

    async def held(self) -> int:
        """Requests in the gateway, waiting or dispatched."""
        state: dict[str, Any] = (await self.client.get(f"{self.gateway}/readyz")).json()
        return int(state["waiting"]) + int(state["in_flight"])

    async def until(self, wanted: Callable[[int], bool], what: str) -> None:
        """Until the number of requests held is as wanted. Raises RuntimeError where it is not."""
        deadline = time.perf_counter() + BUSY_S
        while not wanted(await self.held()):
            if time.perf_counter() > deadline:
                raise RuntimeError(f"{self.gateway} did not get to {what} in {BUSY_S:.0f} s")
            await asyncio.sleep(SAMPLE_S)

    async def ask(self, asked: Asked) -> tuple[Asked, Reply]:
        """Sends one request and reads its stream to the end."""
        return asked, await chat(self.client, self.gateway, asked.body, headers=asked.headers)

    async def explain(self, asked: Asked, reply: Reply) -> Served:
        """The reply with its decision record. Raises httpx.HTTPStatusError where the gateway does
        not tell what it decided."""
        if reply.decision_id is None or reply.status != 200:
            return Served(asked, reply, None, None)
        path = f"{self.gateway}/v1/governor/decisions/{reply.decision_id}"
        answer = await self.client.get(path, headers=asked.headers)
        answer.raise_for_status()
        record = answer.json()["record"]
        if record is None:
            return Served(asked, reply, None, None)
        arrived_us = record["demand"]["arrived_us"]
        return Served(asked, reply, arrived_us, record["now_us"], record["area"])

    async def measured(self, load: Callable[[], Awaitable[Sequence[tuple[Asked, Reply]]]]) -> Run:
        """Runs a load on the idle site and looks at the worker every 50 ms."""
        await self.until(lambda held: held == 0, "rest")
        base = (await self.look()).preemptions
        samples: list[Sample] = []
        start_s = time.perf_counter()
        watching = asyncio.create_task(self._watch(samples, start_s, base))
        try:
            sent = await load()
            makespan_s = time.perf_counter() - start_s
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
        last = await self.look(start_s, base)
        # Records are read behind the load, so as not to be part of it.
        served = await run_all([partial(self.explain, *one) for one in sent], 8)
        return Run(tuple(served), (*samples, last), last.preemptions, makespan_s)

    async def _watch(self, samples: list[Sample], start_s: float, base: int) -> None:
        while True:
            samples.append(await self.look(start_s, base))
            await asyncio.sleep(SAMPLE_S)

    async def crowd(self, seed: int) -> Run:
        """Fills the pool, sends the rest into it, and waits for all."""
        early, late = crowd(seed)

        async def load() -> list[tuple[Asked, Reply]]:
            tasks = [asyncio.create_task(self.ask(asked)) for asked in early]
            await self.until(lambda held: held >= len(early), "its first requests")
            tasks += [asyncio.create_task(self.ask(asked)) for asked in late]
            return await asyncio.gather(*tasks)

        return await self.measured(load)

    async def loop(self, seconds: float, seed: int) -> Run:
        """Clients of both tenants, as many as the crowd has requests, each with one request after
        the other for so long."""
        tenants = tuple(WEIGHTS)

        async def load() -> list[tuple[Asked, Reply]]:
            end_s = time.perf_counter() + seconds
            sent: list[tuple[Asked, Reply]] = []

            async def client(number: int) -> None:
                for asked in without_end(tenants[number % len(tenants)], f"{seed} {number}"):
                    if time.perf_counter() >= end_s:
                        return
                    sent.append(await self.ask(asked))

            await run_all([partial(client, number) for number in range(REQUESTS)], REQUESTS)
            return sent

        return await self.measured(load)


@contextlib.asynccontextmanager
async def sites(**options: tuple[str, ...]) -> AsyncIterator[dict[str, Site]]:
    """A worker and a gateway for each name, the gateway with these options."""
    terms = policy(policy_text())
    workers = [WorkerPlan(f"worker-{name}", SETTINGS) for name in options]
    gateways = [
        GatewayPlan(name, (f"worker-{name}",), terms, given) for name, given in options.items()
    ]
    async with Stack(workers, gateways) as stack, http_client() as client:
        yield {name: Site(client, stack.url(name), stack.url(f"worker-{name}")) for name in options}


async def measure(size: Size, seed: int, tell: Callable[[str], None]) -> Measured:
    """Cold rounds, the warm-up, pairs of rounds, the closed loop."""
    cold = []
    for turn in range(size.cold):
        async with sites(cold=()) as found:
            cold.append(await found["cold"].crowd(COLD_SEED + seed + turn))
        tell(told("cold", cold[-1]))
    runs: dict[str, list[Run]] = {"on": [], "off": []}
    async with sites(on=(), off=("--no-admission",)) as found:
        early, late = crowd(WARM_UP_SEED + seed)
        for asked in [*late, *early][: size.warm_up]:
            await asyncio.gather(*(site.ask(asked) for site in found.values()))
        for turn in range(size.pairs):
            for arm in ("on", "off") if turn % 2 == 0 else ("off", "on"):
                runs[arm].append(await found[arm].crowd(seed + turn))
                tell(told(arm, runs[arm][-1]))
        loop = await found["on"].loop(size.loop_s, seed)
        tell(told("loop", loop))
    return Measured(tuple(runs["on"]), tuple(runs["off"]), tuple(cold), loop)


def told(name: str, run: Run) -> str:
    """A line on one run."""
    return (
        f"{name:5} {len(run.served) - run.lost} of {len(run.served)} answered, "
        f"{run.preemptions} preemptions, {run.makespan_s:.1f} s, pool {run.usage_mean:.2f} full"
    )


def table(found: dict[str, Figure]) -> Table:
    """Figures with their spread over the rounds."""
    made = Table(title="figures, median over the rounds", title_justify="left", box=SIMPLE)
    for name in ("", "value", "least", "most"):
        made.add_column(name, justify="right" if name else "left")
    for name, value in found.items():
        if name.removesuffix("_min").removesuffix("_max") in found and name.endswith(
            ("_min", "_max")
        ):
            continue
        spread = [found.get(f"{name}_min"), found.get(f"{name}_max")]
        made.add_row(name, *("" if v is None else f"{v:,.4g}" for v in (value, *spread)))
    return made


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line. `--rounds` is the number of pairs."""
    parser = argument_parser("benchmarks.admission", str(__doc__).split("\n", 1)[0])
    parser.set_defaults(rounds=None)
    asked = parser.parse_args(arguments)
    asked.rounds = asked.rounds or (QUICK if asked.quick else FULL).pairs
    if asked.rounds < 1:
        parser.error("need at least one round")
    return asked


def main() -> None:
    """Runs, shows, writes."""
    asked = parse()
    console = Console(stderr=asked.json == "-")
    plan = QUICK if asked.quick else FULL
    size = Size(plan.warm_up, asked.rounds, plan.cold, plan.loop_s)
    measured = asyncio.run(measure(size, asked.seed, partial(console.print, highlight=False)))
    found = figures(measured)
    console.print(table(found))
    for text, met in wanted(found).items():
        console.print(f"[{'green' if met else 'red'}]{'yes' if met else 'no':3}[/] {text}")
    for run in (*measured.cold, *measured.on, *measured.off, measured.loop):
        for served in run.served:
            if served.lost:
                console.print(f"lost: {served.asked} {served.reply}", markup=False)
    if asked.json:
        write_json(asked.json, found, metadata(asked.seed, quick=asked.quick))
    if asked.plot:
        from benchmarks.admission_plot import plot

        plot(Path(asked.plot), measured)
    if any(run.lost for run in (*measured.on, measured.loop)):
        sys.exit("requests were lost")


if __name__ == "__main__":
    main()
