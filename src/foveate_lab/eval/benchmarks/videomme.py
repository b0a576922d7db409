"""Video-MME: questions about videos from seconds to an hour, with four choices.

Fu et al., arXiv:2405.21075. From https://huggingface.co/datasets/lmms-lab/Video-MME, whose archives
videos_chunked_*.zip unpack into data/. Without subtitles. Where the paper takes as many frames as a
model reads, 32 are taken here, or what ``frames`` or ``fps`` says. The words around the question
are ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from foveate.data import Folder, Record
from foveate.data.parquet import columns_of, count_rows, read_rows
from foveate.policies.parameters import Positive
from foveate.prompts.sample import Sample
from foveate_lab.eval.benchmarks.film import Rate, answer_of, film_prompt, lettered, video
from foveate_lab.eval.benchmarks.folder import benchmark
from foveate_lab.eval.benchmarks.forms import Forms
from foveate_lab.eval.benchmarks.release import Release
from foveate_lab.eval.benchmarks.shards import on_hub
from foveate_lab.eval.metrics.choices import choice

COLUMNS = (
    "videoID",
    "question_id",
    "duration",
    "domain",
    "task_type",
    "question",
    "options",
    "answer",
)
PLACES = ("data/{}.mp4", "data/{}.MP4", "data/{}.mkv", "video/{}.mp4", "videos/{}.mp4")


def _rows(folder: Folder, paths: Sequence[Path]) -> Iterator[Record]:
    return read_rows(paths, COLUMNS)


FORMS = Forms(
    "Video-MME",
    (
        Release(
            published=on_hub("lmms-lab/Video-MME", "test")._replace(
                holds="videomme/test-*.parquet of lmms-lab/Video-MME, and data/VIDEO.mp4"
            ),
            splits={"test": ("test-*.parquet",)},
            places=("", "videomme/"),
            read=_rows,
            counted=count_rows,
            fitting=lambda paths: {*COLUMNS} <= {*columns_of(paths[0])},
        ),
    ),
)


@benchmark("videomme", forms=FORMS, metric=choice, longest=16)
def videomme(
    folder: Folder, *, frames: Positive | None = None, fps: Rate | None = None
) -> Iterator[Sample]:
    """Questions about short, medium and long videos, with four choices."""
    for record in FORMS.rows(folder):
        choices = lettered(record.texts("options", at_least=2))
        yield Sample(
            name=record.text_or_number("question_id"),
            question=film_prompt(record.text("question"), choices),
            answers=(answer_of(record),),
            videos=(video(folder, record, record.text("videoID"), PLACES, fps, frames),),
            labels={name: record.text(name) for name in ("duration", "task_type", "domain")},
        )
