"""Lists of docs/papers: differences between a paper, its code and Foveate."""

from __future__ import annotations

from textwrap import fill

from foveate_lab.reproduce.registry import PAPERS


def listed(name: str) -> str:
    """Return one list item per difference, in the words of the reproduction's page."""
    return "\n".join(
        fill(f"* {difference}", 100, subsequent_indent="  ", break_on_hyphens=False)
        for difference in PAPERS[name].differences
    )
