"""What stock transformers gets wrong, measured with this catalogue."""

from __future__ import annotations

import transformers
from packaging.version import Version


def second_turn_limit(name: str, images: int) -> str | None:
    """Why a stock cache cannot continue a conversation of this family as it should, if so.

    Args:
        name: A family of the catalogue.
        images: Images in the new turn.
    """
    if name != "gemma3" or Version(transformers.__version__) >= Version("5.23"):
        return None
    if images:
        return "before 5.23 the tokens of a new image do not see each other correctly on a cache"
    return "in 5.13 the sliding mask of a continued conversation has a wrong length"


def drafts_limit(name: str) -> str | None:
    """Why drafted tokens cannot be taken back from a stock cache of this family, if so."""
    if name.startswith("gemma3") and Version(transformers.__version__) < Version("5.15"):
        return "before 5.15 a sliding layer that is full takes back no tokens"
    return None
