"""Plug-in for lmms-eval, found by ``lmms-eval --model foveate``."""

from __future__ import annotations

from typing import Any


def manifest() -> Any:
    """Return the manifest that the entry point group ``lmms_eval.models`` needs: name and class.

    lmms-eval calls it for every model that it looks up, so the class is not imported here.
    """
    from lmms_eval.models.registry_v2 import ModelManifest

    return ModelManifest("foveate", chat_class_path="foveate_lab.plugins.lmms_eval.model.Foveate")
