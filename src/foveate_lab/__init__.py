"""The laboratory: evaluation, reproduction, reports, benchmarks and converters.

``evaluate`` is imported when it is first used: it needs PyTorch and transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foveate_lab.eval.evaluation import Evaluation, evaluate

__all__ = ["Evaluation", "evaluate"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from foveate_lab.eval import evaluation

    return getattr(evaluation, name)
