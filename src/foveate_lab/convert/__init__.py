"""Checkpoints of the papers' models in their authors' layouts, as models of transformers."""

from foveate_lab.convert.layouts import LAYOUTS, Layout, convert

__all__ = ["LAYOUTS", "Layout", "convert"]
