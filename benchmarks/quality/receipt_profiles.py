"""Profiles of the reader, calibrated on drawn documents alone: no scan chooses what is kept.

Pages come from the generator of the reader's training, with seeds of their own, so `demo_model` has
to be on the path and the fonts of `demo_model/training/fonts.txt` installed.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping
from itertools import tee
from pathlib import Path
from random import Random

from foveate.cli.calibrate.prompts import Context
from foveate.hf.measuring.calibrate import calibrate
from foveate.loading.model import Loaded

METHODS = ("recommended", "kvzap")
PAGES = 24
LINES = (18, 60)  # lines of a page, about
QUESTIONS = 5  # further questions about a page


def profiles(loaded: Loaded, folder: Path) -> dict[str, Path]:
    """Return the file of each method's profile; measure those that are missing.

    An interrupted measurement continues. Processes wait for each other.
    """
    paths = {method: folder / f"{method}.safetensors" for method in METHODS}
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another protocol's process may be measuring them
        _measure_missing(loaded, {m: path for m, path in paths.items() if not path.exists()})
    return paths


def _measure_missing(loaded: Loaded, paths: Mapping[str, Path]) -> None:
    for method, path in paths.items():
        print(f"calibrating {method} on {PAGES} drawn pages", flush=True)
        prompts, others = tee(context.tokenized(loaded) for context in _pages())
        calibrate(
            loaded.model,
            method,
            (prompt.inputs for prompt, _ in prompts),
            questions=(asked for _, asked in others) if method == "recommended" else None,
            progress=path.with_suffix(".part"),
        ).save(path)


def _pages() -> Iterator[Context]:
    """Draw documents, most of them receipts, with questions about each."""
    from training.fonts import training_fonts
    from training.reader.documents import any_document

    fonts = training_fonts()
    for number in range(PAGES):
        r = Random(f"calibration/{number}")
        page = any_document(r, fonts, r.randint(*LINES))
        questions = [question for question, answer in page.questions if answer.isascii()]
        question, *others = r.sample(questions, min(QUESTIONS + 1, len(questions)))
        yield Context(question, (page.image,), others)
