"""Profiles of the demo model that `quality.py` needs, made where they are missing: minutes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from foveate.backends.hf.calibrate import calibrate
from foveate.cli.contexts import contexts
from foveate.cli.prompt import QUESTION, passages
from foveate.eval.model import Loaded, load
from foveate.eval.prompt import read

PROFILES = "benchmarks/profiles"
FILTERS = f"{PROFILES}/q_filters.safetensors"
STATISTICS = "benchmarks/runs/profiles/expected_attention.safetensors"  # 4.5 MB
PAGES, TEXTS = 24, 10


def make_missing() -> None:
    """Query filters from drawn pages, of other seeds than the questions; statistics of queries from
    passages of a text, as they are measured where positions count the tokens.
    """
    missing = [path for path in (FILTERS, STATISTICS) if not Path(path).exists()]
    if not missing:
        return
    loaded = load("demo")
    for path in missing:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        calibrate(loaded.model, Path(path).stem, _prompts(loaded, path)).save(Path(path))


def _prompts(loaded: Loaded, path: str) -> Iterator[Mapping[str, Any]]:
    if path == FILTERS:
        for context in contexts(True, PAGES):
            yield context.tokenized(loaded)[0].inputs
    else:
        for text in passages(TEXTS):
            yield read(loaded, f"{text}\n\n{QUESTION}", []).inputs
