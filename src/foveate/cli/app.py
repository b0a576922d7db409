"""The commands, put together; and what happens to errors."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import foveate
from foveate.cli.bench import benchmark
from foveate.cli.calibrate import calibrate
from foveate.cli.catalogue import cite, methods, show
from foveate.cli.convert import convert
from foveate.cli.eval import evaluate
from foveate.cli.pages import lens, report
from foveate.cli.reproduce import reproduce
from foveate.cli.run import run
from foveate.cli.serve import PASSES_ON, serve
from foveate.errors import FoveateError


class Commands(TyperGroup):
    """Commands whose expected errors are one line on stderr and exit code 2, with no traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except FoveateError as error:
            typer.echo(f"Error: {error}", err=True)
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    rich_markup_mode=None,
)


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


for command in (methods, show, cite, run, lens, calibrate, convert, report, reproduce):
    app.command()(command)
app.command(name="eval")(evaluate)
app.command(name="bench")(benchmark)
app.command(context_settings=PASSES_ON)(serve)
