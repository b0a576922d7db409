"""Selections: which slots are kept."""

from foveate.stages.select.drawn import TopAndDrawn
from foveate.stages.select.novel_first import NovelFirst
from foveate.stages.select.robust import Robust
from foveate.stages.select.top_k import TopK

__all__ = ["NovelFirst", "Robust", "TopAndDrawn", "TopK"]
