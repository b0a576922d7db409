"""Foveate: shrink the key-value cache of vision-language models, and measure the effects.

All imports are lazy: PyTorch is imported with the first method or policy, transformers with the
first model that is compressed. So ``import foveate`` is fast. The names here are the public surface
(docs/stability.md).
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from foveate.errors import suggest
from foveate.packages import broken_package

if TYPE_CHECKING:
    from foveate import methods, stages
    from foveate.chat import Answer, Chat, Pipeline
    from foveate.compression.composition import policy
    from foveate.compression.pipeline import Kept
    from foveate.compression.tensors import compress_tensors
    from foveate.data import Clip, read_video
    from foveate.errors import FoveateError
    from foveate.hf import (
        Session,
        Stats,
        calibrate,
        calibrate_heads,
        compress,
        import_head_scores,
        import_profile,
    )
    from foveate.methods import *  # noqa: F403  # all methods, by their names
    from foveate.pictures.lens import Lens, lens
    from foveate.policies.heads import Shown
    from foveate.policies.method import METHODS, Paper, method
    from foveate.policies.policy import Policy
    from foveate.stream import Stream

__version__ = "0.2.0rc1"
__all__ = [
    "METHODS",
    "Answer",
    "Chat",
    "Clip",
    "FoveateError",
    "Kept",
    "Lens",
    "Paper",
    "Pipeline",
    "Policy",
    "Session",
    "Shown",
    "Stats",
    "Stream",
    "calibrate",
    "calibrate_heads",
    "compress",
    "compress_tensors",
    "import_head_scores",
    "import_profile",
    "lens",
    "method",
    "methods",
    "policy",
    "read_video",
    "stages",
]

_PLACES = {
    "METHODS": "policies.method",
    "Clip": "data",
    "Answer": "chat",
    "Chat": "chat",
    "FoveateError": "errors",
    "Kept": "compression.pipeline",
    "Lens": "pictures.lens",
    "Paper": "policies.method",
    "Pipeline": "chat",
    "Policy": "policies.policy",
    "Session": "hf",
    "Shown": "policies.heads",
    "Stats": "hf",
    "Stream": "stream",
    "calibrate": "hf",
    "calibrate_heads": "hf",
    "compress": "hf",
    "compress_tensors": "compression.tensors",
    "import_head_scores": "hf",
    "import_profile": "hf",
    "lens": "pictures.lens",
    "method": "policies.method",
    "policy": "compression.composition",
    "read_video": "data",
}
"""Module that defines each name; the other public names are packages, and methods."""

_FILES = iter_modules([str(Path(__file__).parent / "methods")])
_NO_METHOD = "pruning"  # a folder with stages only
METHOD_NAMES = [module.name for module in _FILES if module.name != _NO_METHOD]
"""Names of Foveate's own methods, one per file; ``METHODS`` also has methods of plug-ins."""

if not TYPE_CHECKING:
    _PLACES |= dict.fromkeys(METHOD_NAMES, "methods")
    __all__ += METHOD_NAMES


def __getattr__(name: str) -> Any:
    """Import a public name at its first use (PEP 562)."""
    if name not in __all__:
        meant = suggest(name.removesuffix("Press"), __all__)  # accept kvpress's class names
        known = f" {meant}" if meant.startswith("Did") and name[:1] != "_" else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}.{known}")
    module = _import(f"{__name__}.{_PLACES.get(name, name)}")
    globals()[name] = value = getattr(module, name) if name in _PLACES else module
    return value


def _import(name: str) -> Any:
    """Import one of Foveate's modules; raise BrokenPackage if a package of PyTorch is broken."""
    try:
        return import_module(name)
    except (ImportError, OSError, RuntimeError) as error:
        if broken := broken_package(error):
            raise broken from None
        raise


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
