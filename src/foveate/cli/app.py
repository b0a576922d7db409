"""The commands, put together; and what happens to errors."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

import foveate
from foveate.cli.commands import PLAIN, Deferred, commands
from foveate.errors import FoveateError
from foveate.packages import broken_package


class Offered(NamedTuple):
    """What a shell offers to complete a word with, and what it says beside it."""

    value: str
    help: str
    type: str = "plain"


class Commands(TyperGroup):
    """Commands whose expected errors are one line on stderr and exit code 2, with no traceback."""

    def __init__(self, **settings: Any):
        super().__init__(**{**settings, "commands": Deferred()})

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The list in ``--help``, without an import of the commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.summary) for name, place in commands().items()])

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """What a shell offers after ``foveate``: options as typer knows them, and commands."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        fitting = [name for name in commands() if name.startswith(incomplete)]
        return [Offered(name, commands()[name].summary) for name in fitting]

    def invoke(self, ctx: Any) -> Any:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except FoveateError as error:
            expected = error
        except (ImportError, OSError, RuntimeError) as error:
            broken = broken_package(error)
            if broken is None:
                raise
            expected = broken
        typer.echo(f"Error: {expected}", err=True)
        raise typer.Exit(2)


app = typer.Typer(**{**PLAIN, "add_completion": True}, cls=Commands, no_args_is_help=True)


def _version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"foveate {foveate.__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def _all(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Shrink the key-value cache of vision-language models, and measure what it changes."""
