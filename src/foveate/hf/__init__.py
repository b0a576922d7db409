"""Hugging Face transformers, 5.4 and later."""

from foveate.hf.attach.session import Session, compress
from foveate.hf.layer.stats import LayerStats, Stats
from foveate.hf.measuring.author_files import import_profile
from foveate.hf.measuring.calibrate import calibrate, calibrate_each
from foveate.hf.measuring.heads import calibrate_heads, import_head_scores
from foveate.hf.measuring.record import Recording, branch, chosen, record

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
