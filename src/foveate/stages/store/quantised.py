"""Where quantised pairs stood before."""

from __future__ import annotations

from foveate.stages.moved import moved

__getattr__ = moved(__name__, QuantisedPairs="foveate.cache.pairs")
