"""The lists of docs/papers: where a paper, its code and Foveate differ."""

from __future__ import annotations

from textwrap import fill

from foveate_lab.reproduce.registry import PAPERS


def listed(name: str) -> str:
    """A line for each difference, as the page of reproductions has them."""
    return "\n".join(
        fill(f"* {what}", 100, subsequent_indent="  ", break_on_hyphens=False)
        for what in PAPERS[name].differences
    )
