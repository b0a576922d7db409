"""Merges: what the kept pairs take over from the others."""

from foveate.stages.merge.nearest import MergeNearest

__all__ = ["MergeNearest"]
