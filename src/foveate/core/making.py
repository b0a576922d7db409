"""How a method's profile is made, as messages say it."""

from __future__ import annotations

IMPORTED = ("duo_attention",)
"""Methods whose profiles are trained, and only read from their authors' files here."""


def made_by(method: str) -> str:
    """How a profile of that method is made."""
    if method in IMPORTED:
        return f"Make one with foveate.import_head_scores(model, '{method}', FILE)"
    return f"Make one with 'foveate calibrate {method} --model MODEL'"
