"""Keys that stand behind the longest prompt of a profile whose maps read keys as they are held.

Keys are turned by their positions, and maps were fitted to keys at the positions of the profile's
prompts. What they say of a key much farther away follows from where it stands, and not from what it
is. So such keys are read as if they stood where the longest prompt ended: they are turned back to
there, where the profile says how the model turns them (positions that count tokens, so not M-RoPE).
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cache

from foveate.cache.layer import Layer
from foveate.cache.slots import Slots, derived, once_for_heads
from foveate.ops.rotation import turned
from foveate.profiles.tensor_profile import TensorProfile

FARTHEST = 2
"""Times the longest prompt: behind it answers get lost (docs/quality.md, a page among many)."""
PIECE = 4096
"""Tokens that are turned at a time: in double precision, so all would take a cache's memory."""


def read_nearer(layer: Layer, profile: TensorProfile, path: str) -> Layer:
    """The layer as a profile's maps read it. The log says once of a profile, the file ``path``, at
    WARNING, that a prompt is far longer than its own.

    Raises:
        ProfileMismatch: the profile turns other channels than the keys have.
    """
    if not profile.longest or (tokens := _tokens(layer.slots)) <= profile.longest:
        return layer
    if tokens > FARTHEST * profile.longest:
        _say_once(path, profile.method, profile.longest)
    rotation = profile.rotation(layer)
    if not len(rotation.frequencies):
        return layer
    # slots ascend in their positions, so no others than the last ones are behind
    far = min(tokens - profile.longest, layer.k.shape[2])
    back = (profile.longest - 1 - once_for_heads(layer.pos)).clamp_max(0)
    keys = layer.k.clone()
    for end in range(keys.shape[2], keys.shape[2] - far, -PIECE):
        some = slice(max(end - PIECE, keys.shape[2] - far), end)
        keys[:, :, some] = turned(keys[:, :, some], back[:, :, some], rotation)
    return replace(layer, k=keys)


@derived
def _tokens(slots: Slots) -> int:
    """Of the longest row."""
    return int(slots.lengths.max())


@cache
def _say_once(path: str, method: str, longest: int) -> None:
    logging.getLogger("foveate").warning(
        f"{path} was made of prompts of up to {longest} tokens, and this one has more than "
        f"{FARTHEST} times as many: it foretells less of keys that far away. Make one of prompts "
        f"as long as yours ('foveate calibrate {method} --model MODEL --prompts FILE'), or take a "
        "method without one ('foveate methods')."
    )
