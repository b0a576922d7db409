"""Names and defaults that messages and options need before anything large is imported."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

SEES, READS = "demo", "smollm2"
SHIPPED = {SEES: "Foveate-Demo-0.14B", READS: "SmolLM2-135M-Instruct"}
"""The models that come with Foveate: one that sees, and one that reads text only."""
FRAMES = 8
"""Frames that are taken of a video where nothing is said: as many as the demo model reads."""
BUDGET_BY_DEFAULT = "20%"
DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
DeviceMap = str | dict[str, int | str]
"""How weights are spread over devices, as transformers takes it: "auto", or by module."""
AttentionName = Literal["sdpa", "eager", "flash_attention_2"]
VARIABLE = "FOVEATE_POLICY"
"""The environment variable that gives a served model its policy."""
SAMPLES = 48
"""Drawn prompts that a profile is measured on."""
METHOD = "recommended"
PLACE = Path("foveate") / f"{METHOD}.safetensors"
"""The profile in a model's directory; in a folder of its own, as vLLM takes every safetensors file
that lies directly in the directory for weights where these have no index.
"""
