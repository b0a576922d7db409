"""Where ThinK's store stood before."""

from __future__ import annotations

from foveate.stages.moved import moved

__getattr__ = moved(
    __name__, NarrowPairs="foveate.cache.pairs", ZeroChannels="foveate.methods.think"
)
