"""Keys behind the longest prompt of a profile whose maps read stored keys.

Keys are rotated by their positions, and maps were fitted to keys at the positions of the profile's
prompts. For a key much farther away, a map's output depends on the position instead of the key. So
such keys are rotated back to where the longest prompt ended, if the profile stores the model's
rotation (positions that count tokens, so not M-RoPE).
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
"""Limit of a prompt's length, as a multiple of the longest prompt of the profile.

Beyond it answers become wrong (docs/quality.md, a page among many).
"""
PIECE = 4096
"""Tokens that are rotated at a time.

Rotation is in double precision, so all tokens at once would take a cache's memory.
"""


def read_nearer(layer: Layer, profile: TensorProfile, path: str) -> Layer:
    """Return the layer with far keys rotated back, as a profile's maps read it.

    Logs a warning, once per profile file ``path``, if a prompt is far longer than the profile's.

    Raises:
        ProfileMismatch: the profile rotates other channels than the keys have.
    """
    if not profile.longest or (tokens := _tokens(layer.slots)) <= profile.longest:
        return layer
    if tokens > FARTHEST * profile.longest:
        _warn_once(path, profile.method, profile.longest)
    rotation = profile.rotation(layer)
    if not len(rotation.frequencies):
        return layer
    # slots ascend in their positions, so only the last ones can be far
    far = min(tokens - profile.longest, layer.k.shape[2])
    back = (profile.longest - 1 - once_for_heads(layer.pos)).clamp_max(0)
    keys = layer.k.clone()
    for end in range(keys.shape[2], keys.shape[2] - far, -PIECE):
        piece = slice(max(end - PIECE, keys.shape[2] - far), end)
        keys[:, :, piece] = turned(keys[:, :, piece], back[:, :, piece], rotation)
    return replace(layer, k=keys)


@derived
def _tokens(slots: Slots) -> int:
    """Return the length of the longest row."""
    return int(slots.lengths.max())


@cache
def _warn_once(path: str, method: str, longest: int) -> None:
    logging.getLogger("foveate").warning(
        f"the profile {path} was measured on prompts of up to {longest} tokens, and this prompt "
        f"has more than {FARTHEST} times as many: it predicts keys that far away less well. "
        f"Measure one on prompts as long as yours ('foveate calibrate {method} --model MODEL "
        "--prompts FILE'), or use a method without a profile ('foveate methods')."
    )
