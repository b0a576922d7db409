"""What a row of a table of policies is called."""

from __future__ import annotations

import re

from foveate.pictures.shown import without_folders


def name(method: str) -> str:
    """The spec, but for a policy that is put together by hand."""
    if "best_heads" in method:
        return "`duo_attention` with HeadKV's scores"
    return f"`{without_folders(method)}`"


def short(method: str) -> str:
    """The same without its settings, and with a star for a profile."""
    if "best_heads" in method:
        return "duo_attention*"
    plain = re.sub(r"\([^)]*\)|:.*", "", method)
    return f"{plain}*" if "profile=" in method else plain
