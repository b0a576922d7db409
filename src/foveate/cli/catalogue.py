"""``foveate methods``, ``show`` and ``cite``: what there is, what a spec means, whom to cite."""

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
            help="One method, for all about it.",
            autocompletion=method_names,
            callback=known,
        ),
    ] = None,
    json: console.Json = False,
) -> None:
    """List all methods, or show one: what it keeps, its parameters, its paper."""
    from foveate.policies.method import METHODS

    chosen = [METHODS[one] for one in (METHODS if name is None else (name,))]
    if json:
        facts = [_facts_of_method(one) for one in chosen]
        console.print_json(facts if name is None else facts[0])
    elif name is None:
        console.show(_listed(chosen), f"\n{_USE}")
    else:
        console.show(*_in_full(chosen[0]))


_USE = (
    "Parameters, with what each does: foveate methods NAME. Methods are used as "
    "METHOD:PARAMETER=VALUE,... - snapkv:budget=20%,window=16"
)


def _listed(chosen: Sequence[Method]) -> Table:
    """Of each method what it keeps, and where it is from."""
    return tables.table(
        chosen,
        tables.column("Method", "name", no_wrap=True),
        tables.column("Keeps", _keeps),
        tables.column("Paper", _paper, no_wrap=True),
        width=80,
    )


def _keeps(build: Method) -> str:
    """The summary, less the verb that the column's title says already."""
    rest = build.summary.removeprefix("Keeps ").replace("``", "")
    return rest[:1].upper() + rest[1:]


def _paper(build: Method) -> str:
    if build.paper is None:
        return "-"
    return f"arXiv:{build.paper.arxiv}" if build.paper.arxiv else str(build.paper.year)


def _in_full(build: Method) -> list[RenderableType]:
    """All about one method, in 80 columns."""
    head = Text(f"{build.name}: {build.summary.replace('``', '')}", style="bold")
    name = tables.column("Parameter", 0, no_wrap=True)
    table = tables.table(_parameters(build), name, "Default", "What it does", width=80)
    spec = f"{build.name}:budget=20%" if "budget" in build.parameters else build.name
    added = f"Added to another method with a plus sign it brings along: {', '.join(build.adds)}."
    use = f"foveate run --method {spec}\nfoveate cite {build.name}"
    parts = [Text(part) for part in (*_cited(build), added, use)]
    shown = [head, table] if build.parameters else [head, Text("It has no parameters.")]
    return [each for part in (*shown, *parts) for each in (part, "")][:-1]


def _parameters(build: Method) -> Iterator[Sequence[str]]:
    for name, parameter in build.parameters.items():
        needed = parameter.default is inspect.Parameter.empty
        default = "(needed)" if needed else print_value(parameter.default)
        takes = describe(build.hints[name]) or _AMOUNT
        yield name, default, f"{meaning(build, name)} Takes {takes}.".strip()


def _cited(build: Method) -> list[str]:
    """The paper, and where it and the authors' code are to be found."""
    if (paper := build.paper) is None:
        return ["It comes from no paper."]
    people = [" ".join(reversed(author.split(", "))) for author in paper.authors]
    places = [f"https://arxiv.org/abs/{paper.arxiv}"] if paper.arxiv else []
    places += [paper.code] if paper.code else []
    return ["\n".join([paper.title, f"{', '.join(people)}. {paper.venue}, {paper.year}", *places])]


_AMOUNT = "an amount: 20%, 256 or 64MB"


def _facts_of_method(build: Method) -> dict[str, Any]:
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
            help="A policy, for example snapkv:budget=20%,window=16.",
            autocompletion=method_names,
            callback=known,
        ),
    ],
    json: console.Json = False,
) -> None:
    """Show the policy that a spec stands for: every stage with every setting."""
    from foveate.compression.composition import policy as policy_of

    policy = policy_of(spec)
    facts = _facts_of_policy(policy)
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


def _facts_of_policy(policy: Policy) -> dict[str, Any]:
    papers = policy.origin.build.papers if policy.origin else ()
    slots = SLOTS if policy.prune is None else EVERY_SLOT
    return {
        "spec": policy.spec,
        "stages": {slot: in_full(getattr(policy, slot)) for slot in slots},
        "divided": list(policy.left_open),
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
    spec: Annotated[
        str,
        typer.Argument(
            help="A method's name, or a whole spec.", autocompletion=method_names, callback=known
        ),
    ],
) -> None:
    """Print the BibTeX entries of a method's paper, or of all methods of a sum."""
    from foveate.compression.composition import find, name_and_arguments
    from foveate.compression.composition import policy as policy_of

    name, arguments = name_and_arguments(spec)
    if arguments:
        policy_of(spec)  # a typing error in the rest is worth knowing too
    papers = () if name == "policy" else find(name).papers
    if not papers:
        typer.echo(f"{name} comes from no paper: there is nothing to cite.", err=True)
        return
    typer.echo("\n\n".join(paper.bibtex for paper in papers))


_SHARED = {
    "as_released": "Count as the authors' code does, where that departs from the paper.",
    "budget": "What is kept: a share of the prompt, a number of tokens or of bytes.",
    "chunk": "Tokens of each part of the prompt that is worked on by itself.",
    "epsilon": "What is added to a score before the value's size multiplies it.",
    "every": "Tokens that are read or generated before it compresses again.",
    "floor": "The least that every head keeps, as a share of an even budget.",
    "group": "How the query heads that share a KV head become one score.",
    "kernel": "Neighboring tokens that scores are pooled over.",
    "merging": "How pairs that are not kept go into those that are.",
    "normalised": "Whether scores are scaled before they are compared.",
    "over": "Whether scores are brought to one scale by layer, or by head.",
    "pool": "How neighbors' scores are pooled: their mean, or the highest.",
    "profile": "A file of what was measured beforehand (foveate calibrate).",
    "protect_text": "Keep all text; visual tokens share what is left of the budget.",
    "recent": "The prompt's last tokens, always kept: a number, or a share of the budget.",
    "seed": "Of what is drawn at random; the same seed draws the same.",
    "sinks": "The prompt's first tokens, always kept.",
    "sketch": "Columns of the random matrix that keys are shortened with; null: none.",
    "window": "The last tokens, whose queries vote and which are always kept.",
}
"""What parameters do that mean the same in every method that has them."""


def meaning(method: Method, parameter: str) -> str:
    """Return what a parameter does; nothing where neither the docstring nor ``_SHARED`` says it."""
    return method.docs.arguments.get(parameter) or _SHARED.get(parameter, "")
