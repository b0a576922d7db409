"""``foveate methods``, ``show`` and ``cite``: what there is, what a spec means, whom to cite."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from foveate.cli import console
from foveate.core.composition import find, name_and_arguments
from foveate.core.composition import policy as policy_of
from foveate.core.method import METHODS, Method
from foveate.core.parameters import describe
from foveate.core.policy import Policy
from foveate.core.spec import SLOTS, print_value


def methods(json: console.Json = False) -> None:
    """List all methods, or show one: what it keeps, its parameters, its paper."""
    if json:
        console.print_json([_facts_of_method(METHODS[name]) for name in METHODS])
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


def _facts_of_method(build: Method) -> dict[str, Any]:
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


_SCOPES = {
    "layer": "each layer is compressed as soon as it has read the prompt",
    "model": "all layers together, after the last one has read the prompt",
}


def show(
    spec: Annotated[str, typer.Argument(help="A policy, for example snapkv:budget=20%,window=16.")],
    json: console.Json = False,
) -> None:
    """Show the policy that a spec stands for: every stage with every setting."""
    policy = policy_of(spec)
    facts = _facts_of_policy(policy)
    if json:
        console.print_json(facts)
        return
    grid = Table.grid(padding=(0, 2))
    for name, value in facts.pop("stages").items():
        grid.add_row(name, Text(value))
    grid.add_row("scope", f"{policy.scope}: {_SCOPES[policy.scope]}")
    grid.add_row("paper", Text(facts["paper"] or "none"))
    console.show(Text(policy.spec, style="bold"), grid)


def _facts_of_policy(policy: Policy) -> dict[str, Any]:
    papers = policy.origin.build.papers if policy.origin else ()
    return {
        "spec": policy.spec,
        "stages": {slot: in_full(getattr(policy, slot)) for slot in SLOTS},
        "scope": policy.scope,
        "paper": "; ".join(paper.title for paper in papers) or None,
    }


def in_full(value: Any) -> str:
    """A value as in a spec, with the defaults of stages written out too."""
    if not hasattr(value, "spec_name"):
        return print_value(value)
    fields = [f.name for f in dataclasses.fields(value) if f.init]
    return f"{value.spec_name}({', '.join(f'{f}={in_full(getattr(value, f))}' for f in fields)})"


def cite(
    spec: Annotated[str, typer.Argument(help="A method's name, or a whole spec.")],
) -> None:
    """Print the BibTeX entries of a method's paper, or of all methods of a sum."""
    name, arguments = name_and_arguments(spec)
    if arguments:
        policy_of(spec)  # a typing error in the rest is worth knowing too
    papers = () if name == "policy" else find(name).papers
    if not papers:
        typer.echo(f"{name} comes from no paper: there is nothing to cite.", err=True)
        return
    typer.echo("\n\n".join(paper.bibtex for paper in papers))
