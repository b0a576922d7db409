"""Where stores and the pairs that they make stood before."""

from __future__ import annotations

from foveate.stages.moved import moved

__getattr__ = moved(
    __name__,
    Kivi="foveate.methods.kivi",
    NarrowPairs="foveate.cache.pairs",
    QuantisedPairs="foveate.cache.pairs",
    ZeroChannels="foveate.methods.think",
)
