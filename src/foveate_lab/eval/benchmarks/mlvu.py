"""MLVU: long videos, of whose tasks those with choices are asked.

Zhou et al., arXiv:2406.04264. The dev set, from https://huggingface.co/datasets/MLVU/MVLU (json/
and video/ with a folder for each task), or from https://huggingface.co/datasets/sy1998/MLVU_dev,
which has the choices in its questions. Sub-scene captions and summaries, which a judge grades, are
left out. The words around the question are ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from foveate.data import Folder, Record, read_records
from foveate.errors import InvalidInput
from foveate.policies.parameters import Positive
from foveate.prompts.sample import Sample
from foveate_lab.eval.benchmarks.film import LETTERS, Rate, answer_of, film_prompt, lettered, video
from foveate_lab.eval.benchmarks.folder import Benchmark
from foveate_lab.eval.benchmarks.source import Source, on_hub
from foveate_lab.eval.benchmarks.sources import Sources
from foveate_lab.eval.metrics.choices import choice

TASKS = (
    "1_plotQA",
    "2_needle",
    "3_ego",
    "4_count",
    "5_order",
    "6_anomaly_reco",
    "7_topic_reasoning",
)
PLACES = tuple(
    f"{folder}{{}}" for folder in ("video/", "MLVU/video/", "", "videos/", "MLVU_all/video/")
)


def _of_tasks(paths: Sequence[Path]) -> Iterator[Record]:
    """Yield questions with the folder in their videos' names, which repeat between tasks."""
    for path in paths:
        for number, record in enumerate(read_records(path)):
            choices = record.texts("candidates", at_least=2)
            yield record.also(
                name=f"{path.stem}/{number}",
                video_name=f"{path.stem}/{record.text('video')}",
                question="\n".join([record.text("question"), *lettered(choices)]),
                answer=_letter(record, choices),
                task_type=record.text("question_type"),
            )


def _letter(record: Record, choices: Sequence[str]) -> str:
    """Return the letter of the choice whose text is the answer."""
    if (answer := record.text("answer")) not in choices:
        raise InvalidInput(f"{record.where}: the answer {answer!r} is none of its candidates.")
    return LETTERS[choices.index(answer)]


SOURCES = Sources(
    "MLVU",
    Source(
        contents="json/1_plotQA.json to json/7_topic_reasoning.json (or MLVU/ with both folders), "
        "and video/1_plotQA/ to video/7_topic_reasoning/",
        address="https://huggingface.co/datasets/MLVU/MVLU",
        splits={"dev": tuple(f"{task}.json" for task in TASKS)},
        folders=("", "json/", "MLVU/json/"),
        read=_of_tasks,
    ),
    on_hub(
        "sy1998/MLVU_dev",
        "test",
        *("video_name", "question", "answer", "task_type"),
        image_column="",
        contents="test-*.parquet of sy1998/MLVU_dev, and the videos that it names",
    ),
)


@Benchmark("mlvu", SOURCES, metric=choice, longest=16)
def mlvu(
    folder: Folder, *, frames: Positive | None = None, fps: Rate | None = None
) -> Iterator[Sample]:
    """Seven kinds of questions about videos of minutes to hours, with choices."""
    for number, (record, _) in enumerate(SOURCES.rows(folder)):
        yield Sample(
            name=record.text("name") if record.has("name") else str(number),
            question=film_prompt(record.text("question")),
            answers=(answer_of(record),),
            videos=(video(folder, record, record.text("video_name"), PLACES, fps, frames),),
            labels={"task_type": record.text("task_type")},
        )
