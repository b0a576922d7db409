"""Tiny random-weight models, one per family, and prompts for them.

Everything is built from configurations: nothing is downloaded.
"""

from __future__ import annotations

from .catalogue import FAMILIES, REFUSED_FAMILIES, TEXT_FAMILIES, VLM_FAMILIES, build, fresh
from .directory import save_llama, save_llava
from .family import IMAGE, PAD, TEXT_FROM, VOCAB
from .limits import before, chunks_limit, drafts_limit, second_turn_limit, step_limit
from .prompts import Inputs, Turn, append, extend, prompt, row

__all__ = [
    "FAMILIES",
    "IMAGE",
    "PAD",
    "REFUSED_FAMILIES",
    "TEXT_FAMILIES",
    "TEXT_FROM",
    "VLM_FAMILIES",
    "VOCAB",
    "Inputs",
    "Turn",
    "append",
    "before",
    "build",
    "chunks_limit",
    "drafts_limit",
    "extend",
    "fresh",
    "prompt",
    "row",
    "save_llama",
    "save_llava",
    "second_turn_limit",
    "step_limit",
]
