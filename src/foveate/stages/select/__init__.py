"""Selections: which slots are kept."""

from foveate.stages.select.top_k import TopK

__all__ = ["TopK"]
