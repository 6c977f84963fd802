"""The `governor` command."""


def main() -> None:
    """Entry point of the `governor` script."""
    from governor.cli.app import run  # only here: importing the package costs nothing

    run()
