"""Profiles for the quality benchmarks, calibrated if missing, in minutes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from foveate.cli.calibrate.prompts import contexts
from foveate.cli.prompt import QUESTION, passages
from foveate.defaults import READS, SEES
from foveate.hf.measuring.calibrate import calibrate
from foveate.loading.model import Loaded, load
from foveate.prompts.prompt import read

PROFILES = "benchmarks/profiles"
FILTERS = f"{PROFILES}/q_filters.safetensors"
KVZAP = f"{PROFILES}/kvzap.safetensors"
TRIATTENTION = f"{PROFILES}/triattention.safetensors"
GATES = "benchmarks/runs/profiles/fast_kvzip.safetensors"  # 13 MB
STATISTICS = "benchmarks/runs/profiles/expected_attention.safetensors"  # 4.5 MB
OF_TEXTS = "benchmarks/runs/profiles"
KVZAP_OF_TEXTS = f"{OF_TEXTS}/kvzap_smollm2.safetensors"
TRIATTENTION_OF_TEXTS = f"{OF_TEXTS}/triattention_smollm2.safetensors"
PAGES, TEXTS = 24, 10
MADE = {
    SEES: (FILTERS, KVZAP, GATES, STATISTICS, TRIATTENTION),
    READS: (KVZAP_OF_TEXTS, TRIATTENTION_OF_TEXTS),
}
ON_PAGES = ("q_filters", "kvzap", "fast_kvzip")


def make_missing(model: str = SEES, methods: Iterable[str] | None = None) -> None:
    """Calibrate the missing profiles of a model that comes with Foveate: those that ``methods``
    name, or all.

    Query filters, KVzap's maps and Fast KVzip's gates are fitted to drawn pages, or to a manual's
    for a text model, with seeds other than the questions'. Statistics and centres of queries are
    measured on passages of text, because positions must count the tokens.
    """
    named = MADE[model] if methods is None else "\n".join(methods)
    missing = [path for path in MADE[model] if path in named and not Path(path).exists()]
    if not missing:
        return
    loaded = load(model)
    for path in missing:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        method = Path(path).stem.removesuffix("_smollm2")
        calibrate(loaded.model, method, _prompts(loaded, method)).save(Path(path))


def _prompts(loaded: Loaded, method: str) -> Iterator[Mapping[str, Any]]:
    if method in ON_PAGES:
        for context in contexts(loaded.sees, PAGES):
            yield context.tokenized(loaded)[0].inputs
    else:
        for text in passages(TEXTS):
            yield read(loaded, f"{text}\n\n{QUESTION}", []).inputs
