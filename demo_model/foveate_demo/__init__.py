"""Small real models for demonstrations, tests and benchmarks, without a model hub."""

from pathlib import Path

PROFILES = Path(__file__).parent / "profiles"
"""Profiles of the demo model, written by ``foveate calibrate``."""
FIGURES = Path(__file__).parent / "figures.json"
"""Accuracy of the demo model, written by ``benchmarks/quality/first_minute.py``."""
