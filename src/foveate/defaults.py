"""Names and defaults for messages and options, importable without torch or transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

SEES, READS, SCANS = "demo", "smollm2", "reader"
SHIPPED = {
    SEES: "Foveate-Demo-0.14B",
    READS: "SmolLM2-135M-Instruct",
    SCANS: "Foveate-Reader-0.14B",
}
"""Models that ship with Foveate: for drawn pages, for text only, and for scanned documents."""
FRAMES = 8
"""Default number of frames of a video: as many as the demo model reads."""
BUDGET_BY_DEFAULT = "20%"
DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
DeviceMap = str | dict[str, int | str]
"""Placement of weights on devices, as transformers takes it: "auto", or a device per module."""
AttentionName = Literal["sdpa", "eager", "flash_attention_2"]
VARIABLE = "FOVEATE_POLICY"
"""Environment variable with the policy of a served model."""
SAMPLES = 48
"""Default number of generated prompts on which a profile is measured."""
METHOD = "recommended"
PLACE = Path("foveate") / f"{METHOD}.safetensors"
"""Path of the profile in a model's directory. It has a folder of its own, because vLLM loads every
safetensors file directly in the directory as weights if these have no index.
"""
