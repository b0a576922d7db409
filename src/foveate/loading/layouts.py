"""Directories of weights in their authors' layout, which transformers does not read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def authors_layout(folder: Path) -> str | None:
    """Return the name of the authors' layout that a directory is in; None if it is in none of those
    that ``foveate convert`` knows, or has no readable ``config.json``.
    """
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return layout_of(config) if isinstance(config, dict) else None


def layout_of(config: Mapping[str, Any]) -> str | None:
    """Return the name of the authors' layout that a configuration is of, or None."""
    kind, architectures = config.get("model_type"), config.get("architectures") or ()
    if "mm_vision_tower" in config and any("LlavaLlama" in str(name) for name in architectures):
        return "LLaVA-1.5"
    if kind == "qwen" and "visual" in config:
        return "Qwen-VL"
    return {"mobilevlm": "MobileVLM V2", "internvl_chat": "InternVL-Chat 1.5"}.get(kind or "")
