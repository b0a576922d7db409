"""Prompts that show what where: for the methods whose profiles are scores of heads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

from foveate.cli.prompt import Which, prompts_of, words_of
from foveate.core.heads import Shown
from foveate.data import Folder, Record
from foveate.errors import InvalidInput
from foveate.eval.evidence import tokens_of
from foveate.eval.model import Loaded
from foveate.eval.prompt import read
from foveate.eval.sample import Box, Sample, Span
from foveate_demo.questions import document
from foveate_demo.scenes import BUILT_IN, CELL, Scene

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


def from_file(path: Path, which: Which, *, outside: bool = False) -> Iterator[Sample]:
    """Prompts of a file of JSON lines. Images stand beside it; anywhere, if ``outside``.

    Raises:
        InvalidInput: it cannot be read, or has a line that is no such prompt.
    """
    folder = Folder(path.parent, outside)
    for number, record in enumerate(prompts_of(path, which)):
        try:
            sample = _sample(str(number), record)
        except InvalidInput as error:
            raise InvalidInput(f"{error} Expected in a line: {EXPECTED}.") from error
        images = folder.images(record, "images") if "images" in record.held else ()
        yield replace(sample, images=images)


def _sample(name: str, record: Record) -> Sample:
    """Without its images."""
    text, spans = words_of(record), record.records("spans", at_least=1)
    answer = record.text_or_number("answer") if record.has("answer") else ""
    images = len(record.texts("images")) if "images" in record.held else 0
    return Sample(name, text, (answer,), evidence=tuple(_span(span, images) for span in spans))


def _span(span: Record, images: int) -> Span:
    """Without a box, a text in the prompt itself."""
    if not span.has("box"):
        return Span(span.text("text"))
    left, top, right, bottom = span.numbers("box", 4)
    if not images:
        raise InvalidInput(f"{span.where}: its box is on an image, and the prompt has none.")
    image = span.index("image", images) if span.has("image") else 0
    return Span(span.text("text"), image, (left, top, right, bottom))


def shown(loaded: Loaded, sample: Sample) -> Shown:
    """The model's inputs, and the tokens that each text stands on.

    Raises:
        InvalidInput: a text that the prompt does not hold, or images whose tokens are not known.
    """
    prompt = read(loaded, sample.text, list(sample.images))
    where = tokens_of(loaded, prompt, sample.images, sample.evidence)
    texts = [span.text for span in sample.evidence]
    return Shown(prompt.inputs, list(zip(texts, where, strict=True)), *sample.answers)
