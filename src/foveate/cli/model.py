"""The option --model."""

from __future__ import annotations

from typing import Any

import typer

from foveate.eval.model import READS


def model_option(default: str) -> Any:
    """The option --model of several commands."""
    words = f"A directory, a hub id, or {READS}, which comes with Foveate. [default: {default}]"
    return typer.Option(metavar="MODEL", help=words, show_default=False)
