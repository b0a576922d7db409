"""``foveate show SPEC``: what a spec stands for."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from foveate.cli import console
from foveate.core.composition import policy as policy_of
from foveate.core.policy import Policy
from foveate.core.spec import SLOTS, print_value

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
    facts = _facts(policy)
    if json:
        console.print_json(facts)
        return
    grid = Table.grid(padding=(0, 2))
    for name, value in facts.pop("stages").items():
        grid.add_row(name, Text(value))
    grid.add_row("scope", f"{policy.scope}: {_SCOPES[policy.scope]}")
    grid.add_row("paper", Text(facts["paper"] or "none"))
    console.show(Text(policy.spec, style="bold"), grid)


def _facts(policy: Policy) -> dict[str, Any]:
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
