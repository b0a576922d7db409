"""The commands by name. Each is imported when it is asked for: ``--help`` needs none of them.

Other packages add commands with entry points of the group ``foveate.commands``, each a mapping like
:data:`COMMANDS`; the laboratory's are added so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any, NamedTuple

import typer


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
