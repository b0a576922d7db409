"""Merges: what the kept pairs take over from the others."""

from foveate.stages.merge.nearest import MergeNearest
from foveate.stages.moved import moved

__all__ = ["MergeNearest"]

__getattr__ = moved(__name__, MergeFollowing="foveate.methods.cam")
