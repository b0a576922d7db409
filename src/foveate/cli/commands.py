"""The commands by name. Each is imported when it is asked for: ``--help`` needs none of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, NamedTuple

import typer


class CommandPlace(NamedTuple):
    """Where a command is: its module in foveate.cli and its function there; the first sentence of
    that function's docstring, so that a list of all commands needs none of their modules; and how
    typer is to read its arguments.
    """

    module: str
    function: str
    summary: str
    settings: dict[str, Any] | None = None


# A new command is one entry here, and its function in a file of its own.
COMMANDS = {
    "methods": CommandPlace(
        "catalogue",
        "methods",
        "List all methods, or show one: what it keeps, its parameters, its paper.",
    ),
    "show": CommandPlace(
        "catalogue",
        "show",
        "Show the policy that a spec stands for: every stage with every setting.",
    ),
    "cite": CommandPlace(
        "catalogue",
        "cite",
        "Print the BibTeX entries of a method's paper, or of all methods of a sum.",
    ),
    "run": CommandPlace(
        "run", "run", "Answer a prompt from the full cache and from compressed ones, and compare."
    ),
    "chat": CommandPlace(
        "chat",
        "chat",
        "Chat with a model about images and videos, the conversation in one compressed cache.",
    ),
    "lens": CommandPlace(
        "pages", "lens", "Make a page that shows which patches and words every head keeps."
    ),
    "calibrate": CommandPlace(
        "calibrate",
        "calibrate",
        "Measure a method's profile on a model, as the mean over several prompts.",
    ),
    "profiles": CommandPlace(
        "profiles",
        "profiles",
        "List the profiles that are installed and the models they are of, or install others.",
    ),
    "doctor": CommandPlace(
        "doctor",
        "doctor",
        "Say what is installed, what lacks, and the pip line that brings it; also of a model's "
        "folder.",
    ),
    "fit": CommandPlace(
        "fit",
        "fit_into",
        "Say what fills the memory, from a model's configuration: weights, tower, prefill, cache.",
    ),
    "convert": CommandPlace(
        "convert",
        "convert",
        "Convert a model in its authors' layout to one that Foveate and transformers load.",
    ),
    "eval": CommandPlace(
        "eval", "evaluate", "Ask many questions under many policies, and write down the answers."
    ),
    "report": CommandPlace(
        "pages", "report", "Make one page of results: scores against memory, with intervals."
    ),
    "reproduce": CommandPlace(
        "reproduce",
        "reproduce",
        "Run the experiments of the five papers, and set every number beside the paper's.",
    ),
    "bench": CommandPlace(
        "bench",
        "benchmark",
        "Measure what methods add to the prefill, and what they save in decoding and memory.",
    ),
    "serve": CommandPlace(
        "serve",
        "serve",
        "Serve a model with vLLM, and compress its prompts.",
        # an option that it does not know is an argument, for vLLM
        {"ignore_unknown_options": True},
    ),
}


PLAIN: dict[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_show_locals": False,
    "rich_markup_mode": None,
}
"""Of every typer application here: help in plain text, and no values in tracebacks."""


class Deferred(Mapping[str, Any]):
    """The commands by name. Each one's module is imported when that command is asked for."""

    def __getitem__(self, name: str) -> Any:
        place = COMMANDS[name]
        function = getattr(import_module(f"foveate.cli.{place.module}"), place.function)
        alone = typer.Typer(**PLAIN)
        alone.command(name, context_settings=place.settings)(function)
        return typer.main.get_command(alone)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)
