"""Small real models for demonstrations, tests and benchmarks that work without a model hub."""

from pathlib import Path

PROFILES = Path(__file__).parent / "profiles"  # of the demo model, by `foveate calibrate`
FIGURES = (
    Path(__file__).parent / "figures.json"
)  # how it answers, by benchmarks/quality/first_minute.py
