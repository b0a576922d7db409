"""Files of prompts that show what where, for the methods whose profiles are scores of heads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from foveate.cli.prompt import Which, prompts_of, words_of
from foveate.data import Folder, Record
from foveate.errors import InvalidInput
from foveate.eval.sample import Sample, Span

EXPECTED = (
    '{"prompt": TEXT, "images": [FILE, ...], "answer": TEXT, "spans": [{"text": TEXT, "image": 0, '
    '"box": [LEFT, TOP, RIGHT, BOTTOM]}, ...]}, in pixels; without image and box, a text stands in '
    "the prompt itself"
)


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
