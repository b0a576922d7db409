"""Tiny random models of every image-text type of transformers, and of the most used text types.

Everything is built from configurations: nothing is downloaded.
"""

from __future__ import annotations

from .building import IMAGE_TEXT, TEXT, build
from .specimen import NotBuilt, Specimen

__all__ = ["IMAGE_TEXT", "TEXT", "NotBuilt", "Specimen", "build"]
