"""Registry of commands, and the handling of their errors.

A command's module is imported when the command runs, so ``--help`` imports none of them. Other
packages, such as the laboratory, add commands with entry points of the group
``foveate.commands``; each is a mapping like :data:`COMMANDS`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

import foveate
from foveate.errors import FoveateError, InvalidParameter
from foveate.packages import broken_package


class CommandPlace(NamedTuple):
    """Location of a command: its module, and the name of its function in that module.

    ``summary`` repeats the first sentence of the function's docstring, so that ``--help`` needs no
    import. ``settings`` are typer's context settings.
    """

    module: str
    function: str
    summary: str
    settings: dict[str, Any] | None = None


# A new command is one entry here, and its function in a file of its own.
_SUMMARIES = {
    "catalogue.methods": "List all methods, or describe one: what it keeps, its parameters, its "
    "paper.",
    "catalogue.show": "Show the policy of a spec: every stage with every parameter.",
    "catalogue.cite": "Print the BibTeX entries of a method's paper, or of all methods in a sum.",
    "run.run.run": "Compare answers to a prompt from the full cache and from compressed caches.",
    "chat.chat.chat": "Chat with a model about images and videos, in one compressed cache.",
    "watch.watch": "Read a video into a cache of bounded size, and answer questions about it.",
    "lens.lens": "Write an HTML page that shows which patches and words every head keeps.",
    "calibrate.calibrate.calibrate": "Measure a method's profile on a model, as the mean over "
    "several prompts.",
    "profiles.profiles": "List, install or remove profiles.",
    "doctor.doctor": "Show installed and missing extras, with the pip command for each; check a "
    "model.",
    "fit.fit": "Predict the memory of a model and a prompt: weights, vision tower, prefill, "
    "KV cache.",
    "serve.serve.serve": "Serve a model with vLLM, and compress its prompts.",
}
_SPLIT_PATHS = {path.rpartition("."): summary for path, summary in _SUMMARIES.items()}
COMMANDS = {
    name: CommandPlace(f"foveate.cli.{module}", name, summary)
    for (module, _, name), summary in _SPLIT_PATHS.items()
}
# serve passes options that it does not know to vLLM
COMMANDS["serve"] = COMMANDS["serve"]._replace(settings={"ignore_unknown_options": True})


@cache
def commands() -> dict[str, CommandPlace]:
    """Return the commands of the library and of other packages, by name."""
    extensions = [entry_point.load() for entry_point in entry_points(group="foveate.commands")]
    if not extensions and find_spec("foveate_lab"):  # a checkout that is not installed
        extensions = [import_module("foveate_lab.cli").COMMANDS]
    return {
        name: command for registry in (COMMANDS, *extensions) for name, command in registry.items()
    }


PLAIN: dict[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_show_locals": False,
    "rich_markup_mode": None,
}
"""Settings of every typer application here: plain-text help, no local variables in tracebacks."""


class Deferred(Mapping[str, Any]):
    """Commands by name; looking one up imports its module."""

    def __getitem__(self, name: str) -> Any:
        command = commands()[name]
        function = getattr(import_module(command.module), command.function)
        alone = typer.Typer(**PLAIN)
        alone.command(name, cls=Command, context_settings=command.settings)(function)
        return typer.main.get_command(alone)

    def __iter__(self) -> Iterator[str]:
        return iter(commands())

    def __len__(self) -> int:
        return len(commands())


class Command(TyperCommand):
    """Command whose error for a word too many says where a question belongs."""

    allow_extra_args = True  # refused below

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; raise InvalidParameter if any is left over."""
        rest: list[str] = super().parse_args(ctx, args)
        if rest:
            takes_prompt = any(option.name == "prompt" for option in self.params)
            way = "Put a question after --prompt, in quotes." if takes_prompt else "Leave it out."
            raise InvalidParameter(
                f"{' '.join(rest)!r} belongs to no option of foveate {self.name}. {way}"
            )
        return rest


class Completion(NamedTuple):
    """Shell completion of a word, with its help text."""

    value: str
    help: str
    type: str = "plain"


class Commands(TyperGroup):
    """Commands whose expected errors are one line on stderr and exit code 2, with no traceback."""

    def __init__(self, **settings: Any):
        super().__init__(**{**settings, "commands": Deferred()})

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands in ``--help`` without importing their modules."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in commands().items()])

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return the completions of the first word after ``foveate``: options and commands."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        fitting = [name for name in commands() if name.startswith(incomplete)]
        return [Completion(name, commands()[name].summary) for name in fitting]

    def invoke(self, ctx: Any) -> Any:
        """Run the command; exit with 2 and one line on stderr after an expected error."""
        try:
            with self._advice_for_terminals(ctx):
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

    @contextmanager
    def _advice_for_terminals(self, ctx: Any) -> Iterator[None]:
        """Replace the log's advice for Python programs by the command's --strict, if it has one."""

        def replace_advice(record: logging.LogRecord) -> bool:
            from foveate.compression.budgeting import ADVICE

            command = self.get_command(ctx, ctx.invoked_subcommand)
            options = command.params if command else ()
            has_strict = any(option.name == "strict" for option in options)
            advice = " --strict raises an error instead." if has_strict else ""
            record.msg = str(record.msg).replace(ADVICE, advice)
            return True

        log = logging.getLogger("foveate")
        log.addFilter(replace_advice)
        try:
            yield
        finally:
            log.removeFilter(replace_advice)


app = typer.Typer(**{**PLAIN, "add_completion": True}, cls=Commands, no_args_is_help=True)


def _version(requested: bool) -> bool:
    if requested:
        typer.echo(f"foveate {foveate.__version__}")
        raise typer.Exit
    return requested


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Compress the KV cache of vision-language models, and measure the effect."""
