"""The commands by name, put together; and what happens to errors.

Each command is imported when it is asked for: ``--help`` needs none of them. Other packages add
commands with entry points of the group ``foveate.commands``, each a mapping like :data:`COMMANDS`;
the laboratory's are added so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

import foveate
from foveate.errors import FoveateError
from foveate.packages import broken_package


class CommandPlace(NamedTuple):
    """Where a command is: its module and its function there; the first sentence of
    that function's docstring, so that a list of all commands needs none of their modules; and how
    typer is to read its arguments.
    """

    module: str
    function: str
    summary: str
    settings: dict[str, Any] | None = None


# A new command is one entry here, and its function in a file of its own.
_SUMMARIES = {
    "catalogue.methods": "List all methods, or show one: what it keeps, its parameters, its paper.",
    "catalogue.show": "Show the policy that a spec stands for: every stage with every setting.",
    "catalogue.cite": "Print the BibTeX entries of a method's paper, or of all methods of a sum.",
    "run.run.run": "Answer a prompt from the full cache and from compressed ones, and compare.",
    "chat.chat.chat": "Chat with a model about images and videos, the conversation in one "
    "compressed cache.",
    "lens.lens": "Make a page that shows which patches and words every head keeps.",
    "calibrate.calibrate.calibrate": "Measure a method's profile on a model, as the mean over "
    "several prompts.",
    "profiles.profiles": "List the profiles that are installed and the models they are of, or "
    "install others.",
    "doctor.doctor": "Say what is installed, what lacks, and the pip line that brings it; also of "
    "a model's folder.",
    "fit.fit": "Say what fills the memory, from a model's configuration: weights, tower, "
    "prefill, cache.",
    "serve.serve.serve": "Serve a model with vLLM, and compress its prompts.",
}
_PLACES = {place.rpartition("."): summary for place, summary in _SUMMARIES.items()}
COMMANDS = {
    name: CommandPlace(f"foveate.cli.{module}", name, summary)
    for (module, _, name), summary in _PLACES.items()
}
# an option that serve does not know is an argument, for vLLM
COMMANDS["serve"] = COMMANDS["serve"]._replace(settings={"ignore_unknown_options": True})


@cache
def commands() -> dict[str, CommandPlace]:
    """Return the library's commands and those that other packages add."""
    added = [each.load() for each in entry_points(group="foveate.commands")]
    if not added and find_spec("foveate_lab"):  # a checkout that is not installed
        added = [import_module("foveate_lab.cli").COMMANDS]
    return {name: place for each in (COMMANDS, *added) for name, place in each.items()}


PLAIN: dict[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_show_locals": False,
    "rich_markup_mode": None,
}
"""Of every typer application here: help in plain text, and no values in tracebacks."""


class Deferred(Mapping[str, Any]):
    """The commands by name. Each one's module is imported when that command is asked for."""

    def __getitem__(self, name: str) -> Any:
        place = commands()[name]
        function = getattr(import_module(place.module), place.function)
        alone = typer.Typer(**PLAIN)
        alone.command(name, context_settings=place.settings)(function)
        return typer.main.get_command(alone)

    def __iter__(self) -> Iterator[str]:
        return iter(commands())

    def __len__(self) -> int:
        return len(commands())


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
