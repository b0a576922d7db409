"""Names of policies in tables."""

from __future__ import annotations

import re

from foveate.pictures.escaping import without_folders


def name(method: str) -> str:
    """Return the spec in code style, or a name for a policy that is composed by hand."""
    if "best_heads" in method:
        return "`duo_attention` with HeadKV's scores"
    return f"`{without_folders(method)}`"


def short(method: str) -> str:
    """Return a short name without settings, with a star for a profile."""
    if "best_heads" in method:
        return "duo_attention*"
    plain = re.sub(r"\([^)]*\)|:.*", "", method)
    return f"{plain}*" if "profile=" in method else plain
