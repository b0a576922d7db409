"""Prompts that show what where: for the methods whose profiles are scores of heads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from PIL import Image

from foveate.cli.files import numbered_lines
from foveate.cli.model import Loaded
from foveate.cli.prompt import Prompt, open_images, read
from foveate.core.errors import InvalidInput
from foveate.core.heads import Shown
from foveate.demo.questions import document
from foveate.demo.scenes import BUILT_IN, CELL, Scene
from foveate.report.places import Grid, grids, tokens_in

Number = int | float
Box = tuple[Number, Number, Number, Number]
EXPECTED = (
    '{"prompt": TEXT, "images": [FILE, ...], "answer": TEXT, "spans": [{"text": TEXT, "image": 0, '
    '"box": [LEFT, TOP, RIGHT, BOTTOM]}, ...]}, in pixels; without image and box, a text stands in '
    "the prompt itself"
)


class Span(NamedTuple):
    """A text, and where it stands: on an image, or in the prompt itself."""

    text: str
    image: int | None
    box: Box


class Asked(NamedTuple):
    """A question, and what shows what."""

    text: str
    images: list[Image.Image]
    answer: str
    spans: list[Span]


def generated(method: str, samples: int) -> Iterator[Asked]:
    """Questions about drawn forms, receipts, tables and signs: for HeadKV with the line that holds
    the answer, for others with all lines.
    """
    for seed in range(samples):
        r = Random(f"heads/{seed}")
        (page,), questions = document(r, (BUILT_IN,))
        asked = r.choice(questions)
        rows = [row for _, row in asked.evidence] if method == "headkv" else range(len(page.says))
        spans = [Span(page.says[row], 0, _line(page, row)) for row in rows if page.says[row]]
        yield Asked(asked.question, [page.image], asked.answer, spans)


def _line(page: Scene, row: int) -> Box:
    middles = page.where[row].values()
    return min(middles), row * CELL, max(middles), (row + 1) * CELL


def from_file(path: Path, samples: int) -> Iterator[Asked]:
    """The prompts of a file of JSON lines.

    Raises:
        InvalidInput: it cannot be read, or has a line that is no such prompt.
    """
    for number, line in numbered_lines(path)[:samples]:
        yield _entry(path, number, line)


def _entry(path: Path, number: int, line: str) -> Asked:
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
    return Asked(text, open_images(images), answer, spans)


def _span(entry: Any) -> Span:
    if "box" not in entry:
        return Span(str(entry["text"]), None, (0, 0, 0, 0))
    left, top, right, bottom = (float(x) for x in entry["box"])
    return Span(str(entry["text"]), int(entry.get("image", 0)), (left, top, right, bottom))


def shown(loaded: Loaded, asked: Asked) -> Shown:
    """The model's inputs, and the tokens that each text stands on.

    Raises:
        InvalidInput: a text that the prompt does not hold, or images whose tokens are not known.
    """
    prompt = read(loaded, asked.text, asked.images)
    places: list[Grid] = []
    if asked.images:
        places = grids(prompt.vision, prompt.inputs, len(asked.images), loaded.model.config)
    spans = []
    for text, image, box in asked.spans:
        if image is None:
            where = _in_text(loaded, prompt, text)
        else:
            where = tokens_in(places[image], box, asked.images[image].size)
        spans.append((text, where))
    return Shown(prompt.inputs, spans, asked.answer)


def _in_text(loaded: Loaded, prompt: Prompt, text: str) -> tuple[int, ...]:
    """The tokens that hold the characters of a text, where it stands first."""
    ids = prompt.inputs["input_ids"][0].tolist()
    pieces = [loaded.tokenizer.decode([token]) for token in ids]
    start = "".join(pieces).find(text)
    if start < 0:
        raise InvalidInput(f"the prompt does not hold the text {text!r}.")
    ends = torch.tensor([len(piece) for piece in pieces]).cumsum(0)
    first = int((ends <= start).sum())
    return tuple(range(first, 1 + int((ends < start + len(text)).sum())))
