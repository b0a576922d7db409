"""The option --model."""

from __future__ import annotations

from typing import Any

import typer

from foveate.eval.model import READS, SEES


def model_option(default: str) -> Any:
    """The option --model of several commands."""
    shipped = f"{SEES} (sees) or {READS} (text only)"
    words = f"A directory, a hub id, or what comes with Foveate: {shipped}. [default: {default}]"
    return typer.Option(metavar="MODEL", help=words, show_default=False)
