"""Foveate: shrink the key-value cache of vision-language models, and measure what it changes."""

from foveate import analysis, methods, stages
from foveate.backends.hf import (
    Session,
    Stats,
    calibrate,
    calibrate_heads,
    compress,
    import_head_scores,
)
from foveate.core.composition import policy
from foveate.core.heads import Shown
from foveate.core.method import METHODS, Paper, method
from foveate.core.pipeline import Kept
from foveate.core.policy import Policy
from foveate.core.tensors import compress_tensors
from foveate.errors import FoveateError
from foveate.methods import *  # noqa: F403  # all methods, by their names
from foveate.report.lens import Lens, lens

__version__ = "0.1.0"
__all__ = [
    "METHODS",
    "FoveateError",
    "Kept",
    "Lens",
    "Paper",
    "Policy",
    "Session",
    "Shown",
    "Stats",
    "analysis",
    "calibrate",
    "calibrate_heads",
    "compress",
    "compress_tensors",
    "import_head_scores",
    "lens",
    "method",
    "policy",
    "stages",
]
__all__ += methods.__all__
