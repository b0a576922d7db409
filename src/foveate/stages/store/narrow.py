"""Where ThinK's store stood before."""

from __future__ import annotations

from foveate.stages.moved import moved

__getattr__ = moved(
    __name__, NarrowPairs="foveate.core.storage", ZeroChannels="foveate.methods.think"
)
