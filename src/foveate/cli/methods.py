"""``foveate methods``: what there is."""

from __future__ import annotations

import inspect
from typing import Any

from rich.text import Text

from foveate.cli import console
from foveate.core.method import METHODS, Method
from foveate.core.parameters import describe
from foveate.core.spec import print_value


def methods(json: console.Json = False) -> None:
    """List all methods: what they keep, their parameters, and the papers."""
    if json:
        console.print_json([_facts(METHODS[name]) for name in METHODS])
        return
    table = console.table("Method", "Keeps", "Parameters", "Paper")
    table.columns[0].no_wrap = True
    table.columns[2].width = 28  # the longest parameter with its default
    table.columns[3].width = 16
    for name in METHODS:
        build = METHODS[name]
        cells = (name, _keeps(build), _parameters(build), _paper(build))
        table.add_row(*(Text(cell) for cell in cells))
    console.show(table, "\nUse them as METHOD:PARAMETER=VALUE,... - snapkv:budget=20%,window=16")


def _keeps(build: Method) -> str:
    """The summary, less the verb that the column's title says already."""
    rest = build.summary.removeprefix("Keeps ").replace("``", "")
    return rest[:1].upper() + rest[1:]


def _parameters(build: Method) -> str:
    """``budget, window=32``: those without a default come without a value."""
    return ", ".join(
        name if p.default is inspect.Parameter.empty else f"{name}={print_value(p.default)}"
        for name, p in build.parameters.items()
    )


def _paper(build: Method) -> str:
    if build.paper is None:
        return "-"
    arxiv = f"arXiv:{build.paper.arxiv}" if build.paper.arxiv else build.paper.venue
    return f"{build.paper.year}\n{arxiv}"


def _facts(build: Method) -> dict[str, Any]:
    paper = build.paper
    return {
        "name": build.name,
        "summary": build.summary,
        "parameters": [
            _parameter(p, describe(build.hints[name])) for name, p in build.parameters.items()
        ],
        "paper": paper and {"title": paper.title, "year": paper.year, "arxiv": paper.arxiv},
    }


def _parameter(parameter: inspect.Parameter, takes: str) -> dict[str, Any]:
    default = parameter.default
    required = default is inspect.Parameter.empty
    if required:
        default = None
    elif not isinstance(default, (bool, int, float, str, type(None))):
        default = print_value(default)
    takes = takes or "an amount: 20%, 256 or 64MB"
    return {"name": parameter.name, "required": required, "default": default, "takes": takes}
