"""`governor explain`: a decision that a running gateway made, with everything it rests on."""

import asyncio
import json
from typing import Annotated, Any

import typer
from rich.console import Console

from governor.cli.ask import KeyOption, UrlOption
from governor.cli.explain_view import explanation
from governor.cli.gateway_client import GatewayClient, GatewayRefused
from governor.core.plain import PlainInvalid, from_plain
from governor.core.record import DecisionRecord


def explain(
    decision_id: Annotated[
        str, typer.Argument(help="From the response header x-governor-decision.")
    ],
    url: UrlOption,
    key: KeyOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what is kept, as JSON.")] = False,
) -> None:
    """Explain a decision that was made. Exit 1 where nothing is kept of it."""
    try:
        found = asyncio.run(_fetch(url, key, decision_id))
    except GatewayRefused as refused:
        if as_json:
            typer.echo(json.dumps({"error": {"message": str(refused), "code": refused.code}}))
        else:
            typer.echo(str(refused), err=True)
        raise typer.Exit(1) from refused
    if as_json:
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
        return
    Console(markup=False, highlight=False).print(explanation(found, _record_of(found)))


async def _fetch(url: str, key: str | None, decision_id: str) -> dict[str, Any]:
    async with GatewayClient(url, key) as gateway:
        return await gateway.decision(decision_id)


def _record_of(found: dict[str, Any]) -> DecisionRecord | None:
    """The record in its own type. A gateway of another version may keep what this one cannot read;
    `--json` shows it all the same."""
    plain = found.get("record")
    if plain is None:
        return None
    try:
        return from_plain(DecisionRecord, plain)
    except PlainInvalid as invalid:
        typer.echo(f"the record is of another version ({invalid}); --json shows it", err=True)
        raise typer.Exit(1) from invalid
