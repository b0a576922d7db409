"""StreamingBench: questions at a moment of a video, with four choices.

Lin et al., arXiv:2411.03628. From https://huggingface.co/datasets/mjuicem/StreamingBench (tables of
comma-separated values; archives with sample_N/, each with its video), or from the authors'
repository (src/data/questions_*.json, whose scripts move videos to videos/). As in its main table,
the 60 seconds before the question are seen (``context=null``: all that came before). Questions that
need sound are asked without it. Sequential questions, which quote earlier answers, and proactive
output, which asks when to speak, are left out. The words around the question are ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from foveate.data import Folder, Record, VideoFile, listed, read_records
from foveate.errors import InvalidInput
from foveate.policies.parameters import Positive
from foveate.prompts.sample import Sample
from foveate_lab.eval.benchmarks.film import Rate, answer_of, film_prompt, lettered, video
from foveate_lab.eval.benchmarks.folder import Benchmark
from foveate_lab.eval.benchmarks.source import Images, Source
from foveate_lab.eval.benchmarks.sources import Sources
from foveate_lab.eval.metrics.choices import choice

TABLES = {"real": "Real_Time_Visual_Understanding", "omni": "Omni_Source_Understanding"}
COLUMNS = ("question_id", "task_type", "question", "time_stamp", "answer", "options")
SAMPLE = re.compile(r"(.+)_(sample_\d+)_\d+$")  # of an id: the folder, and that of the video


def _of_parts(paths: Sequence[Path]) -> Iterator[Record]:
    """Yield the questions of each part of a video."""
    for index, part in enumerate(read_records(paths[0])):
        for number, record in enumerate(part.records("questions")):
            name = part.text("video_path").rpartition("/")[2]
            yield record.also(question_id=f"{index}/{number}", at=f"videos/{name}")


def _with_video(row: Record, images: Images) -> Record:
    record = listed(row, "options")
    match = SAMPLE.match(record.text("question_id"))
    if match is None:
        raise InvalidInput(
            f"{row.where}: the field 'question_id' is {record.text('question_id')!r}; it "
            "has to end with the sample's number and the question's, sample_1_2."
        )
    return record.also(at=f"{match[2]}/video.mp4", of=match[1])


def sources_of(name: str) -> Sources:
    """Return the two published forms of a part."""
    return Sources(
        f"StreamingBench {name}",
        Source(
            publisher="mjuicem",
            contents=f"{TABLES[name]}.csv (or StreamingBench/ with it) of mjuicem/StreamingBench, "
            f"and data/{name}/ (or the archives' own folders) with sample_N/video.mp4",
            address="https://huggingface.co/datasets/mjuicem/StreamingBench",
            splits={"test": (f"{TABLES[name]}.csv",)},
            folders=("", "StreamingBench/"),
            columns=COLUMNS,
            prepare=_with_video,
        ),
        Source(
            contents=f"questions_{name}.json (or src/data/ with it) and videos/ beside it",
            address="https://github.com/THUNLP-MT/StreamingBench",
            splits={"test": (f"questions_{name}.json",)},
            folders=("", "src/data/"),
            read=_of_parts,
        ),
    )


def _samples(
    name: str,
    folder: Folder,
    *,
    context: Positive | None = 60,
    frames: Positive | None = None,
    fps: Rate | None = None,
) -> Iterator[Sample]:
    for record, _ in sources_of(name).rows(folder):
        choices = lettered(record.texts("options", at_least=2))
        yield Sample(
            name=record.text("question_id"),
            question=film_prompt(record.text("question"), choices),
            answers=(answer_of(record),),
            videos=(_seen(folder, name, record, context, fps, frames),),
            labels={"task_type": record.text("task_type")},
        )


def _seen(
    folder: Folder,
    name: str,
    record: Record,
    context: int | None,
    fps: int | float | None,
    frames: int | None,
) -> VideoFile:
    """Return the video before the question, ``context`` seconds of it or all."""
    end = seconds(record)
    start = 0.0 if context is None else max(0.0, end - context)
    paths = ["{}", "src/data/{}", f"data/{name}/{{}}"]
    if record.has("of"):
        paths += [f"{record.text('of')}/{{}}", f"data/{name}/{record.text('of')}/{{}}"]
    return video(folder, record, record.text("at"), paths, fps, frames, start, end)


def seconds(record: Record) -> float:
    """Return the seconds of a time such as "00:03:10".

    Raises:
        InvalidInput: the field is no time.
    """
    text = record.text("time_stamp")
    parts = text.strip().split(":")
    if not 1 < len(parts) < 4 or not all(part.isdecimal() for part in parts):
        raise InvalidInput(
            f"{record.where}: the field 'time_stamp' is {text!r}; it has to be hours, minutes and "
            "seconds, 00:03:10."
        )
    return float(sum(int(part) * 60**i for i, part in enumerate(reversed(parts))))


for _name, _what in (
    ("real", "what is seen at a moment of a video"),
    ("omni", "what is seen, and heard, at a moment of a video, without its sound"),
):
    Benchmark(
        f"streaming_bench_{_name}",
        sources_of(_name),
        data="streaming_bench",
        metric=choice,
        longest=16,
        summary=f"StreamingBench: {_what}, with four choices.",
    )(partial(_samples, _name))
