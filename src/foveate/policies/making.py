"""How a method's profile is made, as messages say it."""

from __future__ import annotations

from foveate.policies.head_scores import HEAD_FILES
from foveate.policies.heads import HEAD_READINGS


def is_read(method: str) -> bool:
    """Whether its profiles are trained, and only read from their authors' files here."""
    trained = method in HEAD_FILES and method not in HEAD_READINGS
    return trained and HEAD_FILES[method].only


def made_by(method: str) -> str:
    """How a profile of that method is made."""
    if is_read(method):
        return f"Make one with foveate.import_head_scores(model, '{method}', FILE)"
    return f"Make one with 'foveate calibrate {method} --model MODEL'"
