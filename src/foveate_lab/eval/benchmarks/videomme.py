"""Video-MME: questions about videos from seconds to an hour, with four choices.

Fu et al., arXiv:2405.21075. From https://huggingface.co/datasets/lmms-lab/Video-MME, whose archives
videos_chunked_*.zip unpack into data/. Without subtitles. Where the paper takes as many frames as a
model reads, 32 are taken here, or what ``frames`` or ``fps`` says. The words around the question
are ours.
"""

from __future__ import annotations

from collections.abc import Iterator

from foveate.data import Folder
from foveate.policies.parameters import Positive
from foveate.prompts.sample import Sample
from foveate_lab.eval.benchmarks.film import Rate, answer_of, film_prompt, lettered, video
from foveate_lab.eval.benchmarks.folder import Benchmark
from foveate_lab.eval.benchmarks.source import on_hub
from foveate_lab.eval.benchmarks.sources import Sources
from foveate_lab.eval.metrics.choices import choice

LABELS = ("duration", "task_type", "domain")
PLACES = ("data/{}.mp4", "data/{}.MP4", "data/{}.mkv", "video/{}.mp4", "videos/{}.mp4")
SOURCES = Sources(
    "Video-MME",
    on_hub(
        "lmms-lab/Video-MME",
        "test",
        *("videoID", "question_id", *LABELS, "question", "options", "answer"),
        folder="videomme/",
        image_column="",
        contents="videomme/test-*.parquet of lmms-lab/Video-MME, and data/VIDEO.mp4",
    ),
)


@Benchmark("videomme", SOURCES, metric=choice, longest=16)
def videomme(
    folder: Folder, *, frames: Positive | None = None, fps: Rate | None = None
) -> Iterator[Sample]:
    """Questions about short, medium and long videos, with four choices."""
    for record, _ in SOURCES.rows(folder):
        choices = lettered(record.texts("options", at_least=2))
        yield Sample(
            name=record.text_or_number("question_id"),
            question=film_prompt(record.text("question"), choices),
            answers=(answer_of(record),),
            videos=(video(folder, record, record.text("videoID"), PLACES, fps, frames),),
            labels={name: record.text(name) for name in LABELS},
        )
