"""`governor policy`: check files, show what is in force, explain a budget before any request."""

import difflib
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from governor.adapters.policies_schema import reference, schema_text
from governor.adapters.policies_yaml import LoadedPolicy, load_policy
from governor.adapters.policy_problem import PolicyFileInvalid, Problem
from governor.cli.policy_explain import Question, answer, answer_table
from governor.cli.policy_view import (
    console,
    policy_rows,
    policy_table,
    problem_json,
    problems_table,
)
from governor.core.outcomes import Priority
from governor.core.policy import PolicySet, Resolved
from governor.gateway.settings import default_policy_file

FileOption = Annotated[
    Path,
    typer.Option(
        "--file",
        "-f",
        envvar="GOVERNOR_POLICY_FILE",
        default_factory=default_policy_file,
        show_default="the policy that ships with Governor",
        help="Policy file.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
TenantOption = Annotated[str, typer.Option("--tenant", "-t", help="Tenant.")]


def read_band(word: str) -> Priority:
    """A priority band by its word in policy files."""
    try:
        return Priority[word.upper()]
    except KeyError:
        words = ", ".join(band.name.lower() for band in Priority)
        raise typer.BadParameter(f"{word!r} is none of {words}") from None


PriorityOption = Annotated[
    Priority | None,
    typer.Option("--priority", "-p", parser=read_band, metavar="BAND", help="Band asked for."),
]


def policy_app() -> typer.Typer:
    """The command group."""
    app = typer.Typer(no_args_is_help=True)
    app.command("check")(check)
    app.command("show")(show)
    app.command("explain")(explain)
    app.command("schema")(schema)
    app.command("reference")(print_reference)
    return app


def read(path: Path) -> tuple[str, LoadedPolicy | PolicyFileInvalid]:
    """A file's text, and its policy or all its faults."""
    try:
        data = path.read_bytes()
    except OSError as error:
        fault = Problem(f"cannot be read: {error.strerror or error}")
        return "", PolicyFileInvalid(str(path), (fault,))
    text = data.decode("utf-8", "replace")
    try:
        return text, load_policy(data, str(path))
    except PolicyFileInvalid as invalid:
        return text, invalid


def load_or_exit(path: Path, *, as_json: bool) -> LoadedPolicy:
    """The policy of a file; prints all faults and exits with 1 where there is none."""
    text, loaded = read(path)
    if isinstance(loaded, LoadedPolicy):
        return loaded
    if as_json:
        _print_json(_check_json(path, loaded))
    else:
        _print_faults(path, text, loaded)
    raise typer.Exit(1)


def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Policy files.")],
    as_json: JsonOption = False,
) -> None:
    """Check policy files: every fault at once, with line and allowed range. Exit 1 on a fault."""
    results = [(path, *read(path)) for path in files]
    if as_json:
        _print_json({"files": [_check_json(path, loaded) for path, _, loaded in results]})
    else:
        for path, text, loaded in results:
            if isinstance(loaded, PolicyFileInvalid):
                _print_faults(path, text, loaded)
            else:
                _print_good(path, text, loaded)
    if any(isinstance(loaded, PolicyFileInvalid) for _, _, loaded in results):
        raise typer.Exit(1)


def show(
    file: FileOption,
    tenant: Annotated[str | None, typer.Option("--tenant", "-t", help="One tenant only.")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Of this model.")] = None,
    priority: PriorityOption = None,
    effective: Annotated[
        bool, typer.Option("--effective", help="Every value, not only those that the file states.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show a policy: what the file states, or with --effective all that is in force, and whence."""
    loaded = load_or_exit(file, as_json=as_json)
    policies = loaded.policy
    if (tenant is None and model is not None) or (model is None and priority is not None):
        raise _refusal("--model needs --tenant, and --priority needs --model", as_json=as_json)
    names = [name for name, _ in policies.tenants] if tenant is None else [tenant]
    shown = []
    for name in names:
        if model is None:
            own = policies.tenant(name)
            if own is None:
                raise _no_tenant(policies, name, as_json=as_json)
            shown.append((name, own, loaded.stated[name, None, None]))
            continue
        found = resolve_or_exit(policies, name, model, priority, as_json=as_json)
        stated = loaded.stated[name, found.pattern, found.band]
        shown.append((title_of(name, model, found), found.policy, stated))
    if as_json:
        rows = {
            title: {
                path: {"value": value, "from": where}
                for path, value, where in policy_rows(policy, stated, effective=effective)
            }
            for title, policy, stated in shown
        }
        _print_json({"policy_hash": policies.policy_hash, "tenants": rows})
        return
    for title, policy, stated in shown:
        console().print(policy_table(policy_rows(policy, stated, effective=effective), title=title))
    console().print(f"policy {policies.policy_hash}", soft_wrap=True)


def explain(
    file: FileOption,
    tenant: TenantOption,
    model: Annotated[str, typer.Option("--model", "-m", help="Model of the request.")],
    priority: PriorityOption = None,
    effort: Annotated[str | None, typer.Option(help="The client's effort word.")] = None,
    budget: Annotated[int | None, typer.Option(min=0, help="The client's thinking budget.")] = None,
    max_completion: Annotated[
        int | None, typer.Option(min=1, help="The client's max_completion_tokens.")
    ] = None,
    wrap_up: Annotated[
        int, typer.Option(min=0, help="Tokens of the wrap-up text on the worker.")
    ] = 1,
    as_json: JsonOption = False,
) -> None:
    """Explain the thinking budget that a request would get, on an idle fleet without history."""
    policies = load_or_exit(file, as_json=as_json).policy
    found = resolve_or_exit(policies, tenant, model, priority, as_json=as_json)
    question = Question(tenant, model, effort, budget, max_completion, wrap_up)
    result = answer(found, question)
    if as_json:
        _print_json({"policy_hash": policies.policy_hash, **result.as_json()})
    else:
        console().print(answer_table(result, title=title_of(tenant, model, found)))
        console().print(result.summary, soft_wrap=True)


def schema() -> None:
    """Print the JSON Schema of policy files."""
    typer.echo(schema_text(), nl=False)


def print_reference() -> None:
    """Print the reference of every key as Markdown."""
    typer.echo(reference())


def resolve_or_exit(
    policies: PolicySet, tenant: str, model: str, band: Priority | None, *, as_json: bool
) -> Resolved:
    """The policy of a request; says what is unknown and exits with 1 where there is none."""
    found = policies.resolve(tenant, model, band)
    if isinstance(found, Resolved):
        return found
    own = policies.tenant(tenant)
    if own is None:
        raise _no_tenant(policies, tenant, as_json=as_json)
    message = f"tenant {tenant!r} may not use model {model!r}; allowed: {', '.join(own.models)}"
    raise _refusal(message, as_json=as_json)


def title_of(tenant: str, model: str, found: Resolved) -> str:
    """What was asked, and which override answers."""
    override = [f"models.{found.pattern}"] if found.pattern is not None else []
    override += [f"priorities.{found.band.name.lower()}"] if found.band is not None else []
    applied = f" (with {' and '.join(override)})" if override else ""
    return f"{tenant} / {model}, priority {found.priority.name.lower()}{applied}"


def _no_tenant(policies: PolicySet, name: str, *, as_json: bool) -> typer.Exit:
    names = [tenant for tenant, _ in policies.tenants]
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"tenants: {', '.join(names[:20])}"
    return _refusal(f"there is no tenant {name!r}; {hint}", as_json=as_json)


def _refusal(message: str, *, as_json: bool) -> typer.Exit:
    """Says why, and gives the exit to raise."""
    if as_json:
        _print_json({"error": message})
    else:
        typer.echo(message, err=True)
    return typer.Exit(1)


def _print_json(value: dict[str, Any]) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def _check_json(path: Path, loaded: LoadedPolicy | PolicyFileInvalid) -> dict[str, Any]:
    if isinstance(loaded, PolicyFileInvalid):
        errors = [problem_json(fault) for fault in loaded.faults]
        return {"file": str(path), "ok": False, "errors": errors, "warnings": []}
    warnings = [problem_json(warning) for warning in loaded.warnings]
    return {
        "file": str(path),
        "ok": True,
        "errors": [],
        "warnings": warnings,
        "policy_hash": loaded.policy.policy_hash,
        "tenants": [name for name, _ in loaded.policy.tenants],
        "anonymous_tenant": loaded.policy.default_tenant,
    }


def _print_faults(path: Path, text: str, invalid: PolicyFileInvalid) -> None:
    count = len(invalid.faults)
    title = f"{path}: {count} error{'s' if count > 1 else ''}"
    console().print(problems_table(invalid.faults, text, title=title))


def _print_good(path: Path, text: str, loaded: LoadedPolicy) -> None:
    policies = loaded.policy
    anonymous = policies.default_tenant
    callers = "every caller needs a key" if anonymous is None else f"without a key: {anonymous}"
    count = f"{len(policies.tenants)} tenant(s), {len(policies.keys)} key(s)"
    console().print(f"{path}: ok, {count}, {callers}", soft_wrap=True)
    if loaded.warnings:
        console().print(problems_table(loaded.warnings, text, title="warnings"))
