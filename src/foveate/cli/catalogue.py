"""``foveate methods``, ``show`` and ``cite``: methods, the policies of specs, and citations."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from foveate.cli import console, tables
from foveate.cli.options import known, method_names
from foveate.defaults import METHOD
from foveate.policies.parameters import describe
from foveate.policies.spec import EVERY_SLOT, SLOTS, print_value

if TYPE_CHECKING:
    from foveate.policies.method import Method
    from foveate.policies.policy import Policy


def methods(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Method to describe, e.g. snapkv.",
            autocompletion=method_names,
            callback=known,
        ),
    ] = None,
    json: console.Json = False,
) -> None:
    """List all methods, or describe one: what it keeps, its parameters, its paper."""
    from foveate.policies.method import METHODS

    chosen = [METHODS[key] for key in (METHODS if name is None else (name,))]
    if json:
        facts = [_method_facts(method) for method in chosen]
        console.print_json(facts if name is None else facts[0])
    elif name is None:
        console.show(*_methods_tables(chosen), f"\n{_USE}")
    else:
        console.show(*_describe_method(chosen[0]))


_USE = (
    "Parameters of a method: foveate methods NAME. Use a method as "
    "METHOD:PARAMETER=VALUE,..., e.g. snapkv:budget=20%,window=16"
)


_PAPERS = ("mixkv", "prefixkv", "csp", "david", "lookm")


def _methods_tables(chosen: Sequence[Method]) -> Iterator[RenderableType]:
    """Yield a titled table for each group of methods: name, summary, paper."""
    groups: dict[str, list[Method]] = {title: [] for title in _GROUPS.values()}
    for method in chosen:
        groups[_group(method)].append(method)
    width = max(len(method.name) for method in chosen)
    for number, (title, members) in enumerate(groups.items()):
        yield Text(f"\n{title}", style="bold")
        yield tables.table(
            members,
            tables.column("Method", "name", no_wrap=True, min_width=width),
            tables.column("Keeps", _summary_cell),
            tables.column("Paper", _paper_cell, no_wrap=True, min_width=len("arXiv:0000.00000")),
            width=80,
            show_header=number == 0,
        )


_GROUPS = {
    "default": "Default: take this one first",
    "paper": "The five papers",
    "plain": "More methods, without preparation",
    "profile": "Methods that need a profile of the model (foveate calibrate METHOD)",
    "while": "Methods that also compress while a video comes in or an answer grows",
    "store": "Stores: fewer bits or channels; add them to any method, e.g. snapkv+kivi",
}


def _group(build: Method) -> str:
    """Return the title of a method's group."""
    if build.name in (METHOD, *_PAPERS):
        return _GROUPS["default" if build.name == METHOD else "paper"]
    if "store" in build.adds:
        return _GROUPS["store"]
    profile = build.parameters.get("profile")
    if profile is not None and profile.default is inspect.Parameter.empty:
        return _GROUPS["profile"]
    return _GROUPS["while" if {"every", "frames"} & set(build.parameters) else "plain"]


def _summary_cell(build: Method) -> str:
    """Return the summary without "Keeps", which is the column's title."""
    rest = build.summary.removeprefix("Keeps ").replace("``", "")
    return rest[:1].upper() + rest[1:]


def _paper_cell(build: Method) -> str:
    if build.paper is None:
        return "-"
    return f"arXiv:{build.paper.arxiv}" if build.paper.arxiv else str(build.paper.year)


def _describe_method(build: Method) -> list[RenderableType]:
    """Return the parts of one method's page, 80 columns wide."""
    head = Text(f"{build.name}: {build.summary.replace('``', '')}", style="bold")
    name = tables.column("Parameter", 0, no_wrap=True)
    table = tables.table(_parameter_rows(build), name, "Default", "What it does", width=80)
    spec = f"{build.name}:budget=20%" if "budget" in build.parameters else build.name
    added = f"Added to another method with a plus sign it brings along: {', '.join(build.adds)}."
    use = f"foveate run --method {spec}\nfoveate cite {build.name}"
    parts = [Text(part) for part in (*_citation_lines(build), added, use)]
    description = [head, table] if build.parameters else [head, Text("It has no parameters.")]
    return [item for part in (*description, *parts) for item in (part, "")][:-1]


def _parameter_rows(build: Method) -> Iterator[Sequence[str]]:
    for name, parameter in build.parameters.items():
        needed = parameter.default is inspect.Parameter.empty
        default = "(required)" if needed else print_value(parameter.default)
        takes = describe(build.hints[name]) or _AMOUNT
        yield name, default, f"{meaning(build, name)} Takes {takes}.".strip()


def _citation_lines(build: Method) -> list[str]:
    """Return the paper's title, authors and venue, and the links to it and to its code."""
    if (paper := build.paper) is None:
        return ["It comes from no paper."]
    people = [" ".join(reversed(author.split(", "))) for author in paper.authors]
    links = [f"https://arxiv.org/abs/{paper.arxiv}"] if paper.arxiv else []
    links += [paper.code] if paper.code else []
    return ["\n".join([paper.title, f"{', '.join(people)}. {paper.venue}, {paper.year}", *links])]


_AMOUNT = "an amount: 20%, 256 or 64MB"


def _method_facts(build: Method) -> dict[str, Any]:
    paper = build.paper
    return {
        "name": build.name,
        "summary": build.summary,
        "parameters": [
            {**_parameter(p, describe(build.hints[name])), "does": meaning(build, name)}
            for name, p in build.parameters.items()
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
    facts = {"name": parameter.name, "required": required, "default": default}
    return {**facts, "takes": takes or _AMOUNT}


_SCOPES = {
    "layer": "each layer is compressed as soon as it has read the prompt",
    "model": "all layers together, after the last one has read the prompt",
}


def show(
    spec: Annotated[
        str,
        typer.Argument(
            help="Policy, e.g. snapkv:budget=20%,window=16.",
            autocompletion=method_names,
            callback=known,
        ),
    ],
    json: console.Json = False,
) -> None:
    """Show the policy of a spec: every stage with every parameter."""
    from foveate.compression.composition import policy as policy_of

    policy = policy_of(spec)
    facts = _policy_facts(policy)
    if json:
        console.print_json(facts)
        return
    grid = Table.grid(padding=(0, 2))
    for name, value in facts.pop("stages").items():
        grid.add_row(name, Text(value))
    if facts["divided"]:
        shares = " and ".join(facts["divided"])
        grid.add_row(
            "one budget", f"{shares}: divided by every prompt's length, docs/howto/pruning.md"
        )
    grid.add_row("scope", f"{policy.scope}: {_SCOPES[policy.scope]}")
    grid.add_row("paper", Text(facts["paper"] or "none"))
    console.show(Text(policy.spec, style="bold"), grid)


def _policy_facts(policy: Policy) -> dict[str, Any]:
    papers = policy.origin.build.papers if policy.origin else ()
    slots = SLOTS if policy.prune is None else EVERY_SLOT
    return {
        "spec": policy.spec,
        "stages": {slot: print_in_full(getattr(policy, slot)) for slot in slots},
        "divided": list(policy.left_open),
        "scope": policy.scope,
        "paper": "; ".join(paper.title for paper in papers) or None,
    }


def print_in_full(value: Any) -> str:
    """Write a value as in a spec, with all parameters of stages, also those at their default."""
    if not hasattr(value, "spec_name"):
        return print_value(value)
    fields = [f.name for f in dataclasses.fields(value) if f.init]
    return (
        f"{value.spec_name}({', '.join(f'{f}={print_in_full(getattr(value, f))}' for f in fields)})"
    )


def cite(
    spec: Annotated[
        str,
        typer.Argument(
            help="Method or policy, e.g. snapkv or snapkv:budget=20%.",
            autocompletion=method_names,
            callback=known,
        ),
    ],
) -> None:
    """Print the BibTeX entries of a method's paper, or of all methods in a sum."""
    from foveate.compression.composition import find, name_and_arguments
    from foveate.compression.composition import policy as policy_of

    name, arguments = name_and_arguments(spec)
    if arguments:
        policy_of(spec)  # raises if the rest of the spec is wrong
    papers = () if name == "policy" else find(name).papers
    if not papers:
        typer.echo(f"{name} comes from no paper: there is nothing to cite.", err=True)
        return
    typer.echo("\n\n".join(paper.bibtex for paper in papers))


_SHARED = {
    "as_released": "Follow the authors' code where it departs from the paper.",
    "budget": "Amount to keep: a share of the prompt, or a number of tokens or bytes.",
    "chunk": "Size in tokens of the parts of the prompt that are processed separately.",
    "epsilon": "Constant added to a score before it is multiplied by the value's norm.",
    "every": "Number of tokens to read or generate before compressing again.",
    "floor": "Minimum that every head keeps, as a share of an even budget.",
    "group": "Reduction of the scores of query heads that share a KV head.",
    "kernel": "Number of neighboring tokens to pool scores over.",
    "merging": "Merging of dropped pairs into kept ones.",
    "normalised": "Scale scores before they are compared.",
    "over": "Scope of the scaling of scores: layer or head.",
    "pool": "Pooling of neighboring scores: their mean, or the maximum.",
    "profile": "Profile file, measured with foveate calibrate.",
    "protect_text": "Keep all text; visual tokens share the rest of the budget.",
    "recent": "Last tokens of the prompt, always kept: a number, or a share of the budget.",
    "seed": "Random seed.",
    "sinks": "Number of first tokens of the prompt, always kept.",
    "sketch": "Columns of the random matrix that projects keys; null: no projection.",
    "window": "Number of last tokens, always kept, whose queries score the others.",
}
"""Help for parameters that mean the same in every method."""


def meaning(method: Method, parameter: str) -> str:
    """Return a parameter's help from the method's docstring or ``_SHARED``; "" without one."""
    return method.docs.arguments.get(parameter) or _SHARED.get(parameter, "")
