"""What a shell offers for a word that has been begun. Nothing large is imported for it."""

from __future__ import annotations

import foveate


def method_names(incomplete: str) -> list[str]:
    """Names of methods; after a plus sign those of what may be added."""
    before, plus, begun = incomplete.rpartition("+")
    return [f"{before}{plus}{name}" for name in foveate.METHOD_NAMES if name.startswith(begun)]
