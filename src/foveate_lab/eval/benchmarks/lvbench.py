"""LVBench: questions about videos of half an hour to two hours, with four choices.

Wang et al., arXiv:2406.08035. From https://huggingface.co/datasets/THUDM/LVBench: a line a video,
with its questions, whose choices stand in them. Videos are not released: they are named by their
YouTube ids, videos/ID.mp4. The words around the question are ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from foveate.data import Folder, Record, read_lines
from foveate.policies.parameters import Positive
from foveate.prompts.sample import Sample
from foveate_lab.eval.benchmarks.film import Rate, answer_of, film_prompt, video
from foveate_lab.eval.benchmarks.folder import Benchmark
from foveate_lab.eval.benchmarks.source import Source
from foveate_lab.eval.benchmarks.sources import Sources
from foveate_lab.eval.metrics.choices import choice

PLACES = ("videos/{}.mp4", "video/{}.mp4", "all_videos/{}.mp4", "videos/{}.mkv", "{}.mp4")


def _questions(paths: Sequence[Path]) -> Iterator[Record]:
    for line in read_lines(paths[0]):
        for record in line.records("qa"):
            yield record.also(key=line.text("key"), kind=line.text("type"))


SOURCES = Sources(
    "LVBench",
    Source(
        contents="video_info.meta.jsonl (or data/ with it) and videos/ID.mp4",
        address="https://huggingface.co/datasets/THUDM/LVBench",
        splits={"test": ("video_info.meta.jsonl",)},
        folders=("", "data/"),
        read=_questions,
    ),
)


@Benchmark("lvbench", SOURCES, metric=choice, longest=16)
def lvbench(
    folder: Folder, *, frames: Positive | None = None, fps: Rate | None = None
) -> Iterator[Sample]:
    """Questions about videos of half an hour and more, with four choices."""
    for record, _ in SOURCES.rows(folder):
        yield Sample(
            name=record.text_or_number("uid"),
            question=film_prompt(record.text("question")),
            answers=(answer_of(record),),
            videos=(video(folder, record, record.text("key"), PLACES, fps, frames),),
            labels={
                "question_type": list(record.texts("question_type")),
                "video_type": record.text("kind"),
            },
        )
