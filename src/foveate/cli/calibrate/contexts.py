"""Prompts to measure a profile on where none are given: drawn pages, or a manual with facts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from PIL import Image
from torch import Tensor

from foveate.cli.prompt import clips_of
from foveate.data import Clip, Folder, Record
from foveate.loading.demo import demo
from foveate.loading.model import Loaded
from foveate.policies.gathering import Asked
from foveate.prompts.manual import manual
from foveate.prompts.prompt import Prompt, read


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
        ids = [other.inputs["input_ids"][0] for other in others]
        own = prompt.inputs["input_ids"][0]
        common = min((_in_common(own, other) for other in ids), default=0)
        tails = tuple(tuple(other[common:].tolist()) for other in ids)
        return prompt, Asked(tuple(one for one in tails if one), common)


def _in_common(one: Tensor, other: Tensor) -> int:
    """How many tokens both begin with."""
    length = min(len(one), len(other))
    differ = (one[:length] != other[:length]).nonzero()
    return int(differ[0]) if len(differ) else length


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
