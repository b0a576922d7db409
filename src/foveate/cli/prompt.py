"""Prompts of commands: texts, images, videos, and files of prompts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.resources import files
from itertools import islice, takewhile
from pathlib import Path
from random import Random
from typing import NamedTuple

from PIL import Image

from foveate.data import Clip, Folder, Record, read_image, read_lines, read_video
from foveate.defaults import FRAMES
from foveate.errors import InvalidInput
from foveate.loading.model import Loaded, demo, reads_pages
from foveate.prompts.prompt import takes_videos
from foveate.prompts.sample import Sample, Span

FIELDS = ("prompt", "images", "videos", "questions", "answer", "spans")
SAMPLE_LINE = (
    '{"prompt": TEXT, "images": [FILE, ...], "answer": TEXT, "spans": [{"text": TEXT, "image": 0, '
    '"box": [LEFT, TOP, RIGHT, BOTTOM]}, ...]}, in pixels; without image and box, a text stands in '
    "the prompt itself"
)


class Which(NamedTuple):
    """Selection of prompts from a file: at most ``samples``, the first or, with a ``seed``, random.

    Prompts have more than ``longer_than`` and at most ``up_to`` letters. With one seed, a smaller
    number of samples selects a subset of a larger one's.
    """

    samples: int
    seed: int | None = None
    longer_than: int | None = None
    up_to: int | None = None

    def of(self, records: Iterable[Record]) -> list[Record]:
        """Return the selected records; raises InvalidInput for a prompt that is no text."""
        if (self.longer_than, self.up_to) != (None, None):
            records = (record for record in records if self._fits(len(text_of(record))))
        if self.seed is None:
            return list(islice(records, self.samples))
        shuffled = list(records)
        Random(self.seed).shuffle(shuffled)
        return shuffled[: self.samples]

    def _fits(self, letters: int) -> bool:
        return (self.longer_than or 0) < letters and (self.up_to is None or letters <= self.up_to)


def prompts_of(path: Path, which: Which) -> list[Record]:
    """Return the selected records of a prompts file in JSON lines.

    Raises:
        InvalidInput: the file cannot be read, is empty, has no prompt of the selected length, or
            has a line that is no record.
    """
    if prompts := which.of(read_lines(path)):
        for prompt in prompts:
            prompt.check_fields(FIELDS)
        return prompts
    if next(iter(read_lines(path)), None) is None:
        raise InvalidInput(f"the prompts file {str(path)!r} is empty: write one prompt per line.")
    limit = "" if which.up_to is None else f" and at most {which.up_to}"
    raise InvalidInput(
        f"the prompts file {str(path)!r} has no prompt of more than {which.longer_than or 0} "
        f"letters{limit}: widen --longer-than and --up-to."
    )


def text_of(record: Record) -> str:
    """Return the text of a record's prompt.

    Raises:
        InvalidInput: it is no text, or empty.
    """
    text = record.text("prompt")
    if not text.strip():
        raise InvalidInput(f"{record.where}: the prompt {text!r} is empty: give at least a word.")
    return text


DESCRIBE = "Describe what you see."
QUESTION = "Which painting did Alfred Yarbus show to his observers?"


def question(
    model: str, text: str | None, paths: Sequence[Path], videos: Sequence[Path] = ()
) -> tuple[str, Sequence[Image.Image]]:
    """Return the text and images of a prompt, with Foveate's own where the user gives none.

    Raises:
        InvalidInput: the text is empty, or a file is missing or is no image.
    """
    if text is None and not paths and not videos and reads_pages(model):
        album = demo("album")
        return album.QUESTION, album.images()
    images = [read_image(path) for path in paths]
    if text is None:
        text = DESCRIBE if images or videos else f"{_shipped_text()}\n\n{QUESTION}"
    if not text.strip():
        raise InvalidInput(f"the prompt {text!r} is empty: give at least one word with --prompt.")
    return text, images


def clips_of(videos: Sequence[Path], fps: float | None, frames: int | None) -> list[Clip]:
    """Sample frames from each video: ``fps`` a second, or ``frames`` in all.

    Raises:
        InvalidInput: ``fps`` or ``frames`` without a video, or a file that is no video.
        InvalidParameter: both ``fps`` and ``frames``, or one out of range.
        MissingPackage: PyAV is not installed.
    """
    if not videos and (fps is not None or frames is not None):
        option = f"--frames {frames}" if fps is None else f"--fps {fps}"
        raise InvalidInput(f"{option} needs a video: add --video FILE.")
    frames = FRAMES if fps is None and frames is None else frames
    return [read_video(path, fps=fps, frames=frames) for path in videos]


def clip_line(clip: Clip, loaded: Loaded) -> str:
    """Describe the frames sampled from a video, in a line."""
    first, last = clip.times[[0, -1]]
    line = f"{clip.name}: {len(clip)} frames, from {first:.1f} to {last:.1f} s"
    if not takes_videos(loaded):
        line += f", as images, since the processor of {loaded.name} takes no videos"
    if clip.corrupt:
        line += f"; {clip.corrupt} packets of the file could not be decoded"
    return line


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def passages(count: int) -> list[str]:
    """Return passages of Foveate's text: two thirds each, starting at different paragraphs."""
    paragraphs = _shipped_text().split("\n\n")
    size = max(1, 2 * len(paragraphs) // 3)
    rotated = (paragraphs[i:] + paragraphs[:i] for i in range(min(count, len(paragraphs))))
    return ["\n\n".join(part[:size]) for part in rotated]


def _shipped_text() -> str:
    return files(demo()).joinpath("reading.txt").read_text(encoding="utf-8").strip()


def samples_of(path: Path, which: Which, *, outside: bool = False) -> Iterator[Sample]:
    """Yield the selected samples of a prompts file in JSON lines, with answers and evidence.

    Images are in the file's folder; with ``outside``, anywhere.

    Raises:
        InvalidInput: the file cannot be read, or has a line that is no sample.
    """
    folder = Folder(path.parent, outside)
    for number, record in enumerate(prompts_of(path, which)):
        try:
            sample = _sample(str(number), record)
        except InvalidInput as error:
            raise InvalidInput(f"{error} Expected in a line: {SAMPLE_LINE}.") from error
        images = folder.images(record, "images") if "images" in record.fields else ()
        yield replace(sample, images=images)


def _sample(name: str, record: Record) -> Sample:
    """Return the sample of a record, without its images."""
    text, spans = text_of(record), record.records("spans", at_least=1)
    answer = record.text_or_number("answer") if record.has("answer") else ""
    images = len(record.texts("images")) if "images" in record.fields else 0
    return Sample(name, text, (answer,), evidence=tuple(_span(span, images) for span in spans))


def _span(span: Record, images: int) -> Span:
    """Return the span of a record; without a box, a span of the prompt's own text."""
    span.check_fields(("text", "image", "box"))
    if not span.has("box"):
        return Span(span.text("text"))
    left, top, right, bottom = span.numbers("box", 4)
    if not images:
        raise InvalidInput(f"{span.where}: its box needs an image, and the prompt has none.")
    image = span.index("image", images) if span.has("image") else 0
    return Span(span.text("text"), image, (left, top, right, bottom))
