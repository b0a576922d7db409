"""Names and defaults that options need before anything large is imported."""

from __future__ import annotations

from typing import Literal

Protocol = Literal["query-aware", "query-agnostic"]
ExecutorName = Literal["local", "ray"]
AnyExecutorName = Literal["local", "ray", "http"]
PresetName = Literal["first-hour"]
FILM_FRAMES = 32
"""Frames that benchmarks take of a video where no option says otherwise."""
LIMIT = 100
"""Samples of each task that an evaluation asks."""
