"""`governor keys`: issue a key for a tenant's callers, check whose a key is. Writes no file."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from governor.adapters.keys import issue_key
from governor.cli.policy import FileOption, JsonOption, TenantOption, load_or_exit
from governor.core.keys import KeyVerdict, hash_of_key, is_key
from governor.core.policy import PolicySet

_ACCEPTED = (KeyVerdict.ACCEPTED, KeyVerdict.ANONYMOUS)


def keys_app() -> typer.Typer:
    """The command group."""
    app = typer.Typer(no_args_is_help=True)
    app.command("issue")(issue)
    app.command("check")(check)
    return app


def issue(
    tenant: TenantOption,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Policy file that must know the tenant.")
    ] = None,
    overlap_days: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=365,
            help="Also print the tenant's present keys, ending after that many days.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Issue a key: shown once, kept nowhere. Put the printed hash under the tenant's `keys`."""
    entries: list[dict[str, str]] = []
    if file is not None:
        policies = load_or_exit(file, as_json=as_json).policy
        if policies.tenant(tenant) is None:
            typer.echo(f"{file} has no tenant {tenant!r}", err=True)
            raise typer.Exit(1)
        if overlap_days is not None:
            entries = _ending(policies, tenant, overlap_days)
    elif overlap_days is not None:
        raise typer.BadParameter("needs --file", param_hint="--overlap-days")
    issued = issue_key()
    if as_json:
        keys = [*entries, {"hash": issued.key_hash}]
        typer.echo(json.dumps({"tenant": tenant, "key": issued.key, "keys": keys}, indent=2))
        return
    typer.echo(f"key for {tenant}, shown this once: {issued.key}")
    typer.echo("\nfor the policy file:\n")
    typer.echo(f"tenants:\n  {tenant}:\n    keys:")
    for entry in entries:
        typer.echo(f"      - hash: {entry['hash']}\n        not_after: {entry['not_after']}")
    typer.echo(f"      - {issued.key_hash}")


def check(
    file: FileOption,
    as_json: JsonOption = False,
) -> None:
    """Check whose a key is. It is read from standard input, never from the command line, which
    other users of the machine can see. Exit 1 where it is not accepted."""
    policies = load_or_exit(file, as_json=as_json).policy
    key = str(typer.prompt("key", hide_input=True, err=True)).strip()
    caller = policies.caller(key, datetime.now(UTC).timestamp())
    if as_json:
        result = {
            "verdict": str(caller.verdict),
            "tenant": caller.tenant,
            "hash": hash_of_key(key),
            "issued_form": is_key(key),
        }
        typer.echo(json.dumps(result, indent=2))
    else:
        tenant = f", tenant {caller.tenant}" if caller.tenant is not None else ""
        typer.echo(f"{caller.verdict}{tenant} ({hash_of_key(key)})")
    if caller.verdict not in _ACCEPTED:
        raise typer.Exit(1)


def _ending(policies: PolicySet, tenant: str, days: int) -> list[dict[str, str]]:
    """The tenant's present keys with an end at most `days` from now."""
    end_s = int((datetime.now(UTC) + timedelta(days=days)).timestamp())
    entries = []
    for entry in policies.keys:
        if entry.tenant == tenant:
            last_s = end_s if entry.not_after_s is None else min(end_s, entry.not_after_s)
            moment = datetime.fromtimestamp(last_s, UTC)
            entries.append({"hash": entry.key_hash, "not_after": f"{moment:%Y-%m-%dT%H:%M:%SZ}"})
    return entries
