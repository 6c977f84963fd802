"""The main job: a fixed mix of problems, directly to the worker and through Governor.

A tenth of the problems are ones that greedy decoding checks for ever. Both sides have a worker
process of their own with the same settings; blocks of 20 problems run one after the other, never
both sides at once, and take turns in going first. Requests are greedy streams with
`max_completion_tokens` 2,048 and no budget: what Governor does comes from the policy alone.

    python -m benchmarks.main_job --rounds 3 --json benchmarks/results/main_job.json
"""

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.client import Reply, chat, http_client, run_all
from benchmarks.harness import DEFAULT_POLICY, ROOT, GatewayPlan, Stack, WorkerPlan, scrape
from benchmarks.main_job_figures import SIDES, Pair, figures
from benchmarks.main_job_view import show
from benchmarks.problems import mix
from benchmarks.report import Figure, argument_parser, metadata, write_json
from governor_probes.tiny_reasoner.task import Problem

CAP_TOKENS = 2048
BLOCK_PROBLEMS = 20
QUICK_PROBLEMS = 30
# Where each side sends its requests, and the worker that computes them.
TARGETS = {"direct": "worker-direct", "governed": "gateway"}
WORKERS = {"direct": "worker-direct", "governed": "worker-governed"}


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent: problems of each round, how many at a time."""

    rounds: tuple[tuple[Problem, ...], ...]
    concurrency: int

    @property
    def blocks(self) -> list[tuple[Problem, ...]]:
        """Blocks of at most 20 problems in order; no block reaches over two rounds."""
        return [
            problems[at : at + BLOCK_PROBLEMS]
            for problems in self.rounds
            for at in range(0, len(problems), BLOCK_PROBLEMS)
        ]


def request_body(problem: Problem) -> dict[str, object]:
    """The same for both sides; the worker ignores the member for Governor."""
    return {
        "model": "tiny-reasoner",
        "messages": problem.messages,
        "temperature": 0,
        "max_completion_tokens": CAP_TOKENS,
        "governor": {"explain": True},
    }


async def measure(stack: Stack, load: Load, progress: Callable[[], None]) -> list[Pair]:
    """Every problem on both sides, in the order of the load."""
    pairs: list[Pair] = []
    async with http_client() as client:
        send = partial(_send, client, stack, load.concurrency, progress)
        warm_up = load.rounds[0][: load.concurrency]
        for side in SIDES:
            await _send(client, stack, load.concurrency, lambda: None, side, warm_up)
        for number, block in enumerate(load.blocks):
            replies: dict[str, list[Reply]] = {}
            for side in SIDES if number % 2 == 0 else SIDES[::-1]:
                replies[side] = await send(side, block)
            pairs += map(Pair, block, replies["direct"], replies["governed"])
    return pairs


async def _send(
    client: httpx.AsyncClient,
    stack: Stack,
    concurrency: int,
    progress: Callable[[], None],
    side: str,
    problems: Sequence[Problem],
) -> list[Reply]:
    url = stack.url(TARGETS[side])
    jobs = [partial(chat, client, url, request_body(problem)) for problem in problems]
    return await run_all(jobs, concurrency, progress)


async def run(load: Load, policy: Path, console: Console) -> tuple[list[Pair], dict[str, Figure]]:
    """Pairs, and the preemptions that each side's worker counted."""
    workers = [WorkerPlan(name) for name in WORKERS.values()]
    gateway = GatewayPlan(TARGETS["governed"], (WORKERS["governed"],), policy)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as shown:
        total = 2 * sum(map(len, load.rounds))
        task = shown.add_task("starting two workers and a gateway", total=total)
        async with Stack(workers, [gateway]) as stack:
            shown.update(task, description="requests")
            pairs = await measure(stack, load, lambda: shown.advance(task))
            counted: dict[str, Figure] = {}
            for side, name in WORKERS.items():
                found = await scrape(stack.url(name))
                counted[f"preemptions_{side}"] = int(found["vllm:num_preemptions_total"])
    return pairs, counted


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; wrong values end the process with a message."""
    parser = argument_parser("benchmarks.main_job", __doc__.split("\n", 1)[0])
    parser.add_argument("--problems", type=int, default=200, help="problems per round")
    parser.add_argument("--concurrency", type=int, default=8, help="requests at a time")
    parser.add_argument("--policy", type=Path, default=DEFAULT_POLICY, help="Governor's policy")
    asked = parser.parse_args(arguments)
    if asked.quick:
        asked.problems, asked.rounds = QUICK_PROBLEMS, 1
    if asked.problems < 10 or asked.rounds < 1 or asked.concurrency < 1:
        parser.error("need at least 10 problems, one round and one request at a time")
    return asked


def main() -> None:
    """Runs, shows, writes."""
    asked = parse()
    console = Console(stderr=asked.json == "-")
    rounds = tuple(tuple(mix(asked.seed + i, asked.problems)) for i in range(asked.rounds))
    load = Load(rounds, asked.concurrency)
    policy = asked.policy.resolve()
    name = str(policy.relative_to(ROOT)) if policy.is_relative_to(ROOT) else policy.name
    console.print(
        f"{asked.rounds} × {asked.problems} problems, {load.concurrency} at a time, greedy, cap "
        f"{CAP_TOKENS} tokens; Governor with {name}; no budget asked for"
    )
    # Before the run: what is committed meanwhile is not what was measured.
    meta = metadata(asked.seed, quick=asked.quick)
    meta |= {"rounds": asked.rounds, "concurrency": load.concurrency, "policy": name}
    meta |= {"max_completion_tokens": CAP_TOKENS}
    pairs, counted = asyncio.run(run(load, policy, console))
    found = figures(pairs, asked.seed) | counted
    show(console, pairs, found)
    if asked.json:
        write_json(asked.json, found, meta)
    if asked.plot:
        from benchmarks.main_job_plot import plot

        title = (
            f"{len(pairs)} problems, {load.concurrency} at a time, at most {CAP_TOKENS:,} tokens"
        )
        plot(asked.plot, pairs, title)
    if any(pair.direct.error or pair.governed.error for pair in pairs):
        sys.exit("requests failed: see errors_direct and errors_governed")


if __name__ == "__main__":
    main()
