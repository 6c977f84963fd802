"""`governor serve`: run the gateway, with workers of yours or with the embedded one."""

import asyncio
import logging
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop
from rich.console import Console
from rich.logging import RichHandler

from governor.adapters.policy_problem import PolicyFileInvalid
from governor.cli.first_request import first_request
from governor.gateway.embedded import EmbeddedWorker, EmbeddedWorkerFailed
from governor.gateway.server import GovernorServer
from governor.gateway.server import serve as serve_runtime
from governor.gateway.settings import Settings
from governor.gateway.wiring import build


def serve(
    worker: Annotated[list[str] | None, typer.Option(help="Base URL of a worker.")] = None,
    policy: Annotated[Path | None, typer.Option(help="Policy file (YAML).")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
    embedded: Annotated[
        bool, typer.Option("--embedded", help="Start the embedded worker on the next port.")
    ] = False,
    embedded_arg: Annotated[
        list[str] | None, typer.Option(help="Argument for the embedded worker, repeatable.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Answer one request, then stop.")] = False,
    admission: Annotated[
        bool | None, typer.Option("--admission/--no-admission", help="Admit against KV headroom.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
) -> None:
    """Run the gateway until it is told to stop. Options win over GOVERNOR_* variables."""
    given: dict[str, Any] = {
        "workers": tuple(worker) if worker else None,
        "policy_file": policy,
        "host": host,
        "port": port,
        "admission": admission,
        "log_level": log_level,
    }
    settings = Settings(**{name: value for name, value in given.items() if value is not None})
    console = Console(stderr=True)
    _log_to(console, settings.log_level)
    child = None
    if embedded:
        arguments = tuple(part for text in embedded_arg or () for part in text.split("=", 1))
        child = EmbeddedWorker("127.0.0.1", settings.port + 1, arguments)
        settings = settings.model_copy(update={"workers": (*settings.workers, child.url)})
    if not settings.workers:
        console.print("no worker: give --worker URL, GOVERNOR_WORKERS or --embedded")
        raise typer.Exit(2)
    try:
        code = uvloop.run(_run(settings, child, console, first=embedded, once=once))
    except PolicyFileInvalid as invalid:
        for problem in invalid.faults:
            console.print(f"policy: {problem}", markup=False, style="red", highlight=False)
        code = 2
    except (EmbeddedWorkerFailed, ValueError, OSError) as error:
        console.print(f"cannot start: {error}", markup=False, style="red", highlight=False)
        code = 1
    raise typer.Exit(code)


async def _run(
    settings: Settings, child: EmbeddedWorker | None, console: Console, *, first: bool, once: bool
) -> int:
    runtime = build(settings)
    code = 0
    tasks: list[asyncio.Task[None]] = []
    url = f"http://{settings.host}:{settings.port}"

    async def greet(server: GovernorServer) -> None:
        nonlocal code
        if not await first_request(url, console):
            code = 1 if once else 0
        if once:
            server.should_exit = True

    def started(server: GovernorServer) -> None:
        console.print(f"[bold]Governor[/] on {url} for {', '.join(settings.workers)}")
        if first or once:
            tasks.append(asyncio.get_running_loop().create_task(greet(server)))

    if child is not None:
        console.print("starting the embedded worker (a 0.6 M parameter reasoning model on the CPU)")
        await child.start()
    try:
        await serve_runtime(runtime, started)
    finally:
        for task in tasks:
            task.cancel()
        if child is not None:
            await child.stop()
    return code


def _log_to(console: Console, level: str) -> None:
    logging.basicConfig(
        level=level.upper(),
        format="%(name)s %(message)s",
        datefmt="[%X]",
        handlers=[RichHandler(console=console, show_path=False, rich_tracebacks=False)],
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
