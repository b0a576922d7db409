"""``foveate cite SPEC``: whom to cite."""

from __future__ import annotations

from typing import Annotated

import typer

from foveate.core.composition import find, name_and_arguments
from foveate.core.composition import policy as policy_of


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
