"""Questions from a user's file of JSON lines: ``foveate eval --data FILE``.

Each line is a question: ``{"question": TEXT, "answers": [TEXT, ...]}`` (or ``"answer"``). Optional:
``"images"`` and ``"videos"`` (files in the folder of the file), ``"context"`` (text before the
question), ``"choices"`` (the answer is then a letter), ``"name"`` and ``"labels"``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from foveate.data import Folder, Record, VideoFile, read_lines
from foveate.data.clip import check_sampling
from foveate.defaults import FRAMES
from foveate.errors import InvalidInput
from foveate.policies.spec import print_arguments
from foveate.prompts.sample import Sample
from foveate_lab.eval.benchmarks.film import answer_of, lettered
from foveate_lab.eval.metrics import has_words
from foveate_lab.eval.metrics.choices import choice
from foveate_lab.eval.task_registry import Metric, Task, distinct

CHOOSE = "Which choice answers this question? Reply with its letter alone."
LONGEST = 32  # tokens of an answer
FIELDS = (
    *("question", "answers", "answer", "images", "videos"),
    *("context", "choices", "name", "labels"),
)


def questions(
    path: Path, *, fps: int | float | None = None, frames: int | None = None, outside: bool = False
) -> Task:
    """Build the task of a file's questions, in file order, named after the file. A prediction is
    right if it contains the words of an answer, or chooses its letter.

    Args:
        path: JSON lines.
        fps: frames per second to sample from its videos.
        frames: number of frames to sample from each video instead; 8 if neither is set.
        outside: allow files outside its folder.

    Raises:
        InvalidInput: an unreadable or empty file; from the samples, a line that is not a question
            or names a missing file.
        InvalidParameter: both ``fps`` and ``frames``, or a value out of range.
    """
    check_sampling(fps, frames)
    records = list(read_lines(path))
    for record in records:
        record.check_fields(FIELDS)
    if not records:
        raise InvalidInput(f"{str(path)!r} is empty: give one question a line.")
    sampling = {"fps": fps, "frames": frames}
    has_videos = any(record.has("videos") for record in records)
    limits = {name: value for name, value in sampling.items() if value is not None and has_videos}
    video_options = {**sampling, "frames": frames if limits else FRAMES}
    folder = Folder(path.parent, outside)

    def samples(count: int, seed: int) -> Iterator[Sample]:
        read = (_sample(folder, n, record, video_options) for n, record in enumerate(records))
        return islice(distinct(read), count)

    name = f"{path.stem}({print_arguments(limits)})" if limits else path.stem
    return Task(name, f"Questions of {path.name}.", samples, _right, LONGEST)


def _sample(
    folder: Folder, number: int, record: Record, video_options: Mapping[str, Any]
) -> Sample:
    """Read one line's question; ``video_options`` selects frames of its videos."""
    choices = lettered(record.texts("choices", at_least=2)) if record.has("choices") else []
    text = record.text("question")
    names = record.texts("videos") if record.has("videos") else ()
    where = f"{record.where}, field 'videos'"
    paths = [folder.named_file(name, where, "{}") for name in names]
    answers = (answer_of(record),) if choices else record.one_or_more("answers", "answer")
    return Sample(
        name=record.text_or_number("name") if record.has("name") else str(number),
        question="\n".join([CHOOSE, text, *choices]) if choices else text,
        answers=answers,
        images=folder.images(record, "images") if record.has("images") else (),
        videos=tuple(VideoFile(path, **video_options) for path in paths),
        context=record.text("context") if record.has("context") else "",
        facts={"choices": choices},
        labels=record.record("labels").fields if record.has("labels") else {},
    )


def _right(prediction: str, sample: Sample) -> float | None:
    """Score a prediction by its letter if there are choices, else by the words of an answer."""
    metric: Metric = choice if sample.facts["choices"] else has_words
    return metric(prediction, sample)
