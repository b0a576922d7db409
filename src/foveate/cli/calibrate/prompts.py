"""Prompts to measure a profile on: of a file, drawn pages, a manual with facts, and, for scores of
heads, questions about drawn pages that say what is where.
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
    in_common,
    passages,
    prompts_of,
    words_of,
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
    """Texts, and the records of the prompts file that they stand in.

    Raises:
        InvalidInput: the file is missing, empty, or has a line that is no prompt.
    """
    if path is None:
        return [(f"{text}\n\n{QUESTION}", None) for text in passages(which.samples)]
    return [_entry(record) for record in prompts_of(path, which)]


def about_videos(videos: Sequence[Path]) -> list[tuple[str, Record]]:
    """A prompt about each video."""
    return [(DESCRIBE, Record({"videos": [str(path.absolute())]}, "--video")) for path in videos]


def _entry(record: Record) -> tuple[str, Record | None]:
    """A record has images and videos, or none, and questions or none."""
    for name in ("images", "videos", "questions"):
        if name in record.held:
            record.texts(name)
    return words_of(record), record


class Context(NamedTuple):
    """A text, with the images and videos that stand before it; and other texts that may stand in
    its place, each with another question.
    """

    text: str
    images: Sequence[Image.Image] = ()
    others: Sequence[str] = ()
    clips: Sequence[Clip] = ()

    def tokenized(self, loaded: Loaded) -> tuple[Prompt, Asked]:
        """The prompt, and the other questions as its tokens go on after what all have in common."""
        prompt, *others = (
            read(loaded, text, list(self.images), clips=self.clips)
            for text in (self.text, *self.others)
        )
        own, *ids = (each.inputs["input_ids"][0].tolist() for each in (prompt, *others))
        common = min((in_common(own, other) for other in ids), default=0)
        tails = (tuple(other[common:]) for other in ids)
        return prompt, Asked(tuple(tail for tail in tails if tail), common)


def of_record(
    text: str, record: Record | None, folder: Folder, fps: float | None, frames: int | None
) -> Context:
    """A prompt of a file, which stands in ``folder`` beside the images and videos that it names,
    and the same with each of its questions behind it.
    """
    if record is None:
        return Context(text)
    questions = record.texts("questions") if "questions" in record.held else ()
    images = folder.images(record, "images") if "images" in record.held else ()
    names = record.texts("videos") if "videos" in record.held else ()
    where = f"{record.where}, field 'videos'"
    paths = [folder.named_file(name, where, "{}") for name in names]
    clips = clips_of(paths, fps, frames) if paths else ()
    return Context(text, images, [f"{text}\n\n{question}" for question in questions], clips)


def contexts(sees: bool, samples: int) -> Iterator[Context]:
    """Draw prompts of many kinds and lengths, with a question each: pages for a model that sees,
    otherwise pieces of Python's manual among whose words some facts stand.
    """
    drawn = demo("calibration")
    for number in range(samples):
        if sees:
            yield Context(*drawn.pages(number))
        else:
            question, others = drawn.text(number, manual())
            yield Context(question, (), others)


def generated(method: str, samples: int) -> Iterator[Sample]:
    """Draw questions about forms, receipts, tables and signs: for HeadKV with the line that holds
    the answer, for others with all lines.
    """
    for seed in range(samples):
        question, page, lines = demo("calibration").page_with_lines(seed, method == "headkv")
        spans = tuple(Span(text, 0, box) for text, box in lines)
        yield Sample(str(seed), question.question, (question.answer,), (page,), evidence=spans)


def shown(loaded: Loaded, sample: Sample) -> Shown:
    """The model's inputs, and the tokens that each text stands on.

    Raises:
        InvalidInput: a text that the prompt does not hold, images whose tokens are not known, or
            texts of which the model's processor leaves none.
    """
    prompt = read(loaded, sample.text, list(sample.images))
    where = tokens_of(loaded, prompt, sample.images, sample.evidence)
    spans = [(span.text, at) for span, at in zip(sample.evidence, where, strict=True) if at]
    if not spans:
        raise InvalidInput(
            f"sample {sample.name}: the processor of {loaded.name} cuts "
            f"{[span.text for span in sample.evidence]} off the image, so no head can look at it. "
            "Give images of another shape."
        )
    return Shown(prompt.inputs, spans, *sample.answers)
