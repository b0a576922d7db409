"""Prompts that show what where: for the methods whose profiles are scores of heads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from foveate.cli.files import numbered_lines
from foveate.cli.prompt import open_images
from foveate.core.errors import InvalidInput
from foveate.core.heads import Shown
from foveate.demo.questions import document
from foveate.demo.scenes import BUILT_IN, CELL, Scene
from foveate.eval.evidence import tokens_of
from foveate.eval.model import Loaded
from foveate.eval.prompt import read
from foveate.eval.sample import Box, Sample, Span

EXPECTED = (
    '{"prompt": TEXT, "images": [FILE, ...], "answer": TEXT, "spans": [{"text": TEXT, "image": 0, '
    '"box": [LEFT, TOP, RIGHT, BOTTOM]}, ...]}, in pixels; without image and box, a text stands in '
    "the prompt itself"
)


def generated(method: str, samples: int) -> Iterator[Sample]:
    """Questions about drawn forms, receipts, tables and signs: for HeadKV with the line that holds
    the answer, for others with all lines.
    """
    for seed in range(samples):
        r = Random(f"heads/{seed}")
        (page,), questions = document(r, (BUILT_IN,))
        asked = r.choice(questions)
        rows = [row for _, row in asked.evidence] if method == "headkv" else range(len(page.says))
        spans = [Span(page.says[row], 0, _line(page, row)) for row in rows if page.says[row]]
        yield Sample(
            str(seed), asked.question, (asked.answer,), (page.image,), evidence=tuple(spans)
        )


def _line(page: Scene, row: int) -> Box:
    middles = page.where[row].values()
    return min(middles), row * CELL, max(middles), (row + 1) * CELL


def from_file(path: Path, samples: int) -> Iterator[Sample]:
    """The prompts of a file of JSON lines.

    Raises:
        InvalidInput: it cannot be read, or has a line that is no such prompt.
    """
    for number, line in numbered_lines(path)[:samples]:
        yield _entry(path, number, line)


def _entry(path: Path, number: int, line: str) -> Sample:
    try:
        entry = json.loads(line)
        spans = [_span(span) for span in entry["spans"]]
        text, answer = str(entry["prompt"]), str(entry.get("answer", ""))
        images = [path.parent / str(name) for name in entry.get("images", [])]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"{path}, line {number}: expected {EXPECTED}.") from error
    seen = all(span.image is None or 0 <= span.image < len(images) for span in spans)
    if not text.strip() or not spans or not seen:
        raise InvalidInput(
            f"{path}, line {number}: no words, no spans, or a span on an image that is not there; "
            f"expected {EXPECTED}."
        )
    return Sample(str(number), text, (answer,), tuple(open_images(images)), evidence=tuple(spans))


def _span(entry: Any) -> Span:
    if "box" not in entry:
        return Span(str(entry["text"]), None, (0, 0, 0, 0))
    left, top, right, bottom = (float(x) for x in entry["box"])
    return Span(str(entry["text"]), int(entry.get("image", 0)), (left, top, right, bottom))


def shown(loaded: Loaded, sample: Sample) -> Shown:
    """The model's inputs, and the tokens that each text stands on.

    Raises:
        InvalidInput: a text that the prompt does not hold, or images whose tokens are not known.
    """
    prompt = read(loaded, sample.text, list(sample.images))
    where = tokens_of(loaded, prompt, sample.images, sample.evidence)
    texts = [span.text for span in sample.evidence]
    return Shown(prompt.inputs, list(zip(texts, where, strict=True)), *sample.answers)
