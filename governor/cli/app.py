"""The root of the `governor` command: its subcommands by name, each imported when it is asked for.
Holds no command itself."""

import pkgutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Annotated

import typer


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand. `target` is `module:name` of a function with Typer's annotations, or of a
    function without arguments that returns a `typer.Typer` with subcommands of its own (`group`).
    """

    name: str
    target: str
    summary: str
    group: bool = False


COMMANDS: tuple[Command, ...] = (
    Command("serve", "governor.cli.serve:serve", "Run the gateway."),
    Command("ask", "governor.cli.ask:ask", "Ask a question and watch the thinking."),
    Command("policy", "governor.cli.policy:policy_app", "Check, show, explain policies.", True),
    Command("keys", "governor.cli.keys:keys_app", "Issue and check callers' keys.", True),
    Command("explain", "governor.cli.explain:explain", "Explain a decision that was made."),
)


def build_app(arguments: Sequence[str]) -> typer.Typer:
    """The command line for `arguments`. Only the subcommand that they name is imported; the others
    are there by name and summary. A subcommand that cannot be imported raises ImportError."""
    app = typer.Typer(
        name="governor",
        help="Budgeted, forecast, observable thinking for inference fleets.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_show_locals=False,
    )
    app.callback()(_root)
    wanted = next((word for word in arguments if not word.startswith("-")), None)
    for command in COMMANDS:
        if command.name != wanted:
            app.command(command.name, help=command.summary)(_not_imported)
            continue
        # Not hidden from the import contracts: every target lies in this package, whose own modules
        # they check.
        found = pkgutil.resolve_name(command.target)
        if command.group:
            app.add_typer(found(), name=command.name, help=command.summary)
        else:
            app.command(command.name, help=command.summary)(found)
    return app


def run(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, by default the process's own, and exit."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    build_app(given)(args=given, prog_name="governor")


def _not_imported() -> None:
    raise AssertionError("a subcommand runs only when it was imported")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"governor {version('governor-gateway')}")
        raise typer.Exit


def _root(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Options of the root command; all of them act before a subcommand runs."""
