"""What stock transformers gets wrong, measured with this catalogue on 5.4.0, 5.10.4, 5.13.1,
5.20.2, 5.22.2 and the newest release; where a fault ends between two of these, the later one counts
as without it.
"""

from __future__ import annotations

import transformers
from packaging.version import Version

MROPE = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")


def before(release: str) -> bool:
    """Whether the release at hand is older."""
    return Version(transformers.__version__) < Version(release)


def second_turn_limit(name: str, images: int) -> str | None:
    """Why a stock cache cannot continue a conversation of this family as it should, if so.

    Args:
        name: A family of the catalogue.
        images: Images in the new turn.
    """
    if name != "gemma3" or not before("5.23"):
        return None
    if images:
        return "before 5.23 the tokens of a new image do not see each other correctly on a cache"
    return "in 5.13 the sliding mask of a continued conversation has a wrong length"


def drafts_limit(name: str) -> str | None:
    """Why drafted tokens cannot be taken back from a stock cache of this family, if so."""
    if name.startswith("gemma3") and before("5.15"):
        return "before 5.15 a sliding layer that is full takes back no tokens"
    return None


def chunks_limit(name: str) -> str | None:
    """Why ``prefill_chunk_size`` cannot be used with this family, if so."""
    if name in MROPE and before("5.20.2"):
        return "on 5.13.1 the positions of chunks are those of the whole prompt"
    return None


def step_limit(name: str) -> str | None:
    """Why a step of this family by hand is not a step of ``generate``, if so."""
    if name == "qwen2_5_vl" and before("5.10.4"):
        return "on 5.4.0 a step without position_ids has other positions than generate gives it"
    return None


def beams_limit(images: int) -> str | None:
    """Why beams of a prompt with so many images cannot be compared, if so."""
    if images > 1 and before("5.10.4"):
        return "on 5.4.0 a second beam has other images than the first"
    return None


def readers_limit() -> str | None:
    """Why a processor's reader of images may be missing, if so."""
    return "on 5.4.0 most readers of images need torchvision" if before("5.24") else None
