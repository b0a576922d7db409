"""ChartQA: questions about charts, some asked by people, some generated.

Masry et al., arXiv:2203.10244. From https://github.com/vis-nlp/ChartQA, from lmms-lab/ChartQA,
ahmed-masry/ChartQA or HuggingFaceM4/ChartQA on the hub, or as VLMEvalKit's ChartQA_TEST.tsv.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import Image

from foveate.data import Folder, Record, read_records
from foveate.prompts.sample import Sample
from foveate_lab.eval.benchmarks.folder import benchmark
from foveate_lab.eval.benchmarks.forms import BenchmarkRow, Forms, Published
from foveate_lab.eval.benchmarks.release import Release
from foveate_lab.eval.benchmarks.shards import Shards, on_hub
from foveate_lab.eval.benchmarks.tabled import Tabled, in_kit
from foveate_lab.eval.metrics import relaxed

ASK = "\nAnswer the question with a single word."
PARTS = ("human", "augmented")
ARCHIVE = "ChartQA Dataset/test/"  # where the authors' archive has the split that is asked


def _released(folder: Folder, paths: Sequence[Path]) -> Iterator[BenchmarkRow]:
    for part, path in zip(PARTS, paths, strict=True):
        for record in read_records(path):
            image = folder.image(
                record, "imgname", "png/{}", "{}", "test/png/{}", f"{ARCHIVE}png/{{}}"
            )
            yield BenchmarkRow(record.also(type=part), image)


def _made(record: Record, image: Image.Image) -> Record:
    """Whether people asked, which one repository holds as 0 and another as a word."""
    if not record.has("human_or_machine"):
        return record
    return record.also(type=PARTS[record.index("human_or_machine", 2)])


FORMS = Forms(
    "ChartQA",
    (
        Release(
            published=Published(
                "the authors",
                "test_human.json, test_augmented.json and png/ (or the archive's test/ or "
                "ChartQA Dataset/test/ with them)",
                "https://github.com/vis-nlp/ChartQA",
            ),
            splits={
                split: tuple(f"{split}_{part}.json" for part in PARTS)
                for split in ("test", "val", "train")
            },
            places=("", "test/", ARCHIVE),
            read=_released,
        ),
        Shards(
            published=on_hub("lmms-lab/ChartQA", "test"),
            task_split="test",
            columns=("type", "question", "answer"),
        ),
        Shards(
            published=on_hub("ahmed-masry/ChartQA", "test"),
            task_split="test",
            columns=("type", "query", "label"),
        ),
        Shards(
            published=on_hub("HuggingFaceM4/ChartQA", "test"),
            task_split="test",
            columns=("human_or_machine", "query", "label"),
            made=_made,
        ),
        Tabled(
            published=in_kit("ChartQA_TEST.tsv"),
            table="ChartQA_TEST.tsv",
            task_split="test",
            columns={"question": "question", "answer": "answer", "split": "type"},
        ),
    ),
)


@benchmark("chartqa", forms=FORMS, metric=relaxed, longest=16)
def chartqa(folder: Folder) -> Iterator[Sample]:
    """Questions about charts, by relaxed accuracy; what people asked comes first."""
    numbers = Counter[str]()
    for record, image in FORMS.rows(folder):
        part = record.text("type").removesuffix("_test").removeprefix("test_")
        (answer,) = record.one_or_more("answer", "label")
        yield Sample(
            name=f"{part}/{numbers[part]}",
            question=f"{record.text('question', 'query')}{ASK}",
            answers=(answer,),
            images=(image,),
            labels={"part": part},
        )
        numbers[part] += 1
