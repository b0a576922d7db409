"""``foveate cite SPEC``: whom to cite."""

from __future__ import annotations

from typing import Annotated

import typer

from foveate.core.method import METHODS
from foveate.core.method import policy as policy_of


def cite(
    spec: Annotated[str, typer.Argument(help="A method's name, or a whole spec.")],
) -> None:
    """Print the BibTeX entry of a method's paper."""
    name, colon, _ = spec.partition(":")
    if colon:
        policy_of(spec)  # a typing error in the rest is worth knowing too
    paper = None if name.strip() == "policy" else METHODS[name.strip()].paper
    if paper is None:
        typer.echo(f"{name.strip()} comes from no paper: there is nothing to cite.", err=True)
        return
    typer.echo(paper.bibtex)
