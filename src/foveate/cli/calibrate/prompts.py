"""Prompts to measure a profile on.

They come from a file, or are generated: drawn pages, Python's manual with facts hidden in it, and,
for scores of heads, questions about drawn pages with the boxes of their lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from foveate.cli.prompt import (
    DESCRIBE,
    QUESTION,
    Which,
    clips_of,
    common_prefix,
    passages,
    prompts_of,
    text_of,
)
from foveate.data import Clip, Folder, Record
from foveate.errors import InvalidInput
from foveate.loading.model import Loaded, demo
from foveate.policies.gathering import Asked
from foveate.policies.heads import Shown
from foveate.prompts.evidence import tokens_of
from foveate.prompts.manual import manual
from foveate.prompts.prompt import Prompt, read
from foveate.prompts.sample import Sample, Span


def texts_of(path: Path | None, which: Which) -> Sequence[tuple[str, Record | None]]:
    """Return the texts of a prompts file, each with its record.

    Without a file: passages of the text that comes with Foveate, without records.

    Raises:
        InvalidInput: the file is missing, empty, or has a line that is no prompt.
    """
    if path is None:
        return [(f"{text}\n\n{QUESTION}", None) for text in passages(which.samples)]
    return [_entry(record) for record in prompts_of(path, which)]


def about_videos(videos: Sequence[Path]) -> list[tuple[str, Record]]:
    """Return a prompt that asks to describe each video."""
    return [(DESCRIBE, Record({"videos": [str(path.absolute())]}, "--video")) for path in videos]


def _entry(record: Record) -> tuple[str, Record | None]:
    """Return a record's text and the record, once its lists are known to hold texts."""
    for name in ("images", "videos", "questions"):
        if name in record.fields:
            record.texts(name)
    return text_of(record), record


class Context(NamedTuple):
    """Prompt of images, videos and a text; ``others`` are texts with other questions at the end."""

    text: str
    images: Sequence[Image.Image] = ()
    others: Sequence[str] = ()
    clips: Sequence[Clip] = ()

    def tokenized(self, loaded: Loaded) -> tuple[Prompt, Asked]:
        """Return the prompt, and the tokens of the other questions after the common beginning."""
        prompt, *others = (
            read(loaded, text, list(self.images), clips=self.clips)
            for text in (self.text, *self.others)
        )
        own, *ids = (each.inputs["input_ids"][0].tolist() for each in (prompt, *others))
        common = min((common_prefix(own, other) for other in ids), default=0)
        tails = (tuple(other[common:]) for other in ids)
        return prompt, Asked(tuple(tail for tail in tails if tail), common)


def context_of(
    text: str, record: Record | None, folder: Folder, fps: float | None, frames: int | None
) -> Context:
    """Return a prompt of a file, with each of the record's questions appended in ``others``.

    ``folder`` is that of the file; images and videos are named relative to it.
    """
    if record is None:
        return Context(text)
    questions = record.texts("questions") if "questions" in record.fields else ()
    images = folder.images(record, "images") if "images" in record.fields else ()
    names = record.texts("videos") if "videos" in record.fields else ()
    where = f"{record.where}, field 'videos'"
    paths = [folder.named_file(name, where, "{}") for name in names]
    clips = clips_of(paths, fps, frames) if paths else ()
    return Context(text, images, [f"{text}\n\n{question}" for question in questions], clips)


def contexts(sees: bool, samples: int) -> Iterator[Context]:
    """Generate prompts of several kinds and lengths, with a question each.

    They are drawn pages for a model that sees, otherwise pieces of Python's manual with some facts
    hidden in them.
    """
    drawn = demo("calibration")
    for number in range(samples):
        if sees:
            yield Context(*drawn.pages(number))
        else:
            question, others = drawn.text(number, manual())
            yield Context(question, (), others)


def generated(method: str, samples: int) -> Iterator[Sample]:
    """Generate questions about drawn forms, receipts, tables and signs.

    The evidence is the line with the answer for HeadKV, and all lines for other methods.
    """
    for seed in range(samples):
        question, page, lines = demo("calibration").page_with_lines(seed, method == "headkv")
        spans = tuple(Span(text, 0, box) for text, box in lines)
        yield Sample(str(seed), question.question, (question.answer,), (page,), evidence=spans)


def locate_spans(loaded: Loaded, sample: Sample) -> Shown:
    """Return the model's inputs, and the indices of the tokens that show each evidence text.

    Raises:
        InvalidInput: the prompt lacks a text, the tokens of its images are not known, or the
            model's processor cuts off all texts.
    """
    prompt = read(loaded, sample.text, list(sample.images))
    indices = tokens_of(loaded, prompt, sample.images, sample.evidence)
    spans = [(span.text, at) for span, at in zip(sample.evidence, indices, strict=True) if at]
    if not spans:
        raise InvalidInput(
            f"sample {sample.name}: the processor of {loaded.name} crops "
            f"{[span.text for span in sample.evidence]} off the image, so no token shows it. Use "
            "images of another aspect ratio."
        )
    return Shown(prompt.inputs, spans, *sample.answers)
