"""Converters of the papers' checkpoints from their authors' layouts to transformers models."""

from foveate_lab.convert.layouts import LAYOUTS, Layout, convert

__all__ = ["LAYOUTS", "Layout", "convert"]
