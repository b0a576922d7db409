"""Prompts to measure a profile on where none are given: drawn pages, or a manual with facts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from typing import NamedTuple

from PIL import Image
from torch import Tensor

from foveate.cli.prompt import clips_of
from foveate.data import Clip, Folder, Record
from foveate.loading.model import Loaded
from foveate.policies.gathering import Asked
from foveate.prompts.prompt import Prompt, read
from foveate_demo import questions
from foveate_demo.questions import Album
from foveate_demo.scenes import BUILT_IN
from foveate_demo.scenes.documents import Fonts
from foveate_demo.scenes.words import FIELDS, PEOPLE
from foveate_lab.eval.tasks.text_needle import manual

SAMPLES = 48
QUESTIONS = 8  # about a prompt, by whose answers a pair is measured as well
KINDS: tuple[Callable[[Random, Fonts], Album], ...] = (
    questions.document,
    questions.different_fields,
    questions.bars,
    partial(questions.same_fields, people=4),
    questions.in_image,
    partial(questions.same_fields, people=6),
    partial(questions.same_fields, people=8),
    questions.bars,
)
WORDS = (100, 1200)  # of a text


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
    """Prompts of many kinds and lengths, with a question each: pages for a model that sees."""
    for number in range(samples):
        r = Random(f"contexts/{number}")
        yield _pages(r, number) if sees else _text(r)


def _pages(r: Random, number: int) -> Context:
    album = KINDS[number % len(KINDS)](r, (BUILT_IN,))
    question = r.choice(album.questions)
    others = [
        one.question for one in r.sample(album.questions, min(QUESTIONS, len(album.questions)))
    ]
    return Context(question.question, [page.image for page in album.images], others)


def _text(r: Random) -> Context:
    """A piece of Python's manual among whose words some facts stand."""
    count = r.randint(*WORDS)
    start = r.randrange(len(manual()) - count)
    words = list(manual()[start : start + count])
    facts = [(r.choice(PEOPLE), r.choice(list(FIELDS))) for _ in range(2 + count // 200)]
    for who, what in facts:
        line = f"\n{who}'s {what.lower()}: {FIELDS[what](r)}\n"
        words.insert(r.randint(0, len(words)), line)
    texts = [f"{' '.join(words)}\n\nWhat is {who}'s {what.lower()}?" for who, what in facts]
    return Context(r.choice(texts), (), texts[:QUESTIONS])
