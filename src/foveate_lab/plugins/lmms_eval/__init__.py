"""``lmms-eval --model foveate``: how lmms-eval finds it."""

from __future__ import annotations

from typing import Any


def manifest() -> Any:
    """What the entry point group ``lmms_eval.models`` asks for: the name, and where the class is.

    lmms-eval calls it for every model that it looks up, so the class is not imported here.
    """
    from lmms_eval.models.registry_v2 import ModelManifest

    return ModelManifest("foveate", chat_class_path="foveate_lab.plugins.lmms_eval.model.Foveate")
