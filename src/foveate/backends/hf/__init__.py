"""Hugging Face transformers, 5.4 and later."""

from foveate.backends.hf.calibrate import calibrate, calibrate_each
from foveate.backends.hf.heads import calibrate_heads, import_head_scores
from foveate.backends.hf.published import import_profile
from foveate.backends.hf.record import Recording, branch, chosen, record
from foveate.backends.hf.session import Session, compress
from foveate.backends.hf.stats import LayerStats, Stats

__all__ = [
    "LayerStats",
    "Recording",
    "Session",
    "Stats",
    "branch",
    "calibrate",
    "calibrate_each",
    "calibrate_heads",
    "chosen",
    "compress",
    "import_head_scores",
    "import_profile",
    "record",
]
