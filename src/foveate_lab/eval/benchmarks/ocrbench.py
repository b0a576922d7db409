"""OCRBench: reading of many kinds.

Liu et al., arXiv:2305.07895. From https://github.com/Yuliang-Liu/MultimodalOCR, or from
https://huggingface.co/datasets/echo840/OCRBench, or as VLMEvalKit's OCRBench.tsv. New lines are
blanks, on both sides; formulae are compared without either, in their own case. lmms-eval, with
which MixKV was measured, lowers the case of what is said of a formula and not of the answer:
``lowered``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from foveate.data import Folder, Record, listed, read_records
from foveate.prompts.sample import Sample
from foveate_lab.eval.benchmarks.folder import benchmark
from foveate_lab.eval.benchmarks.forms import BenchmarkRow, Forms, Published
from foveate_lab.eval.benchmarks.release import Release
from foveate_lab.eval.benchmarks.shards import Shards, on_hub
from foveate_lab.eval.benchmarks.tabled import Tabled, in_kit
from foveate_lab.eval.metrics import contains

FORMULAE = "Handwritten Mathematical Expression Recognition"


def read_right(prediction: str, sample: Sample) -> float:
    """1 if an answer stands in the prediction; the benchmark sums this up over 1,000 questions."""
    if sample.facts["type"] != FORMULAE:
        return contains(prediction, sample)
    said = _bare(prediction.lower() if sample.facts["lowered"] else prediction)
    return float(any(_bare(answer) in said for answer in sample.answers))


def _bare(text: str) -> str:
    return text.strip().replace("\n", "").replace(" ", "")


def _released(folder: Folder, paths: Sequence[Path]) -> Iterator[BenchmarkRow]:
    (path,) = paths
    places = ("{}", "images/{}", "OCRBench_Images/{}")
    for record in read_records(path):
        yield BenchmarkRow(record, folder.image(record, "image_path", *places))


FORMS = Forms(
    "OCRBench",
    (
        Release(
            published=Published(
                "the authors",
                "OCRBench.json (or OCRBench/ with it) beside OCRBench_Images/, or with the images",
                "https://github.com/Yuliang-Liu/MultimodalOCR",
            ),
            splits={"test": ("OCRBench.json",)},
            places=("", "OCRBench/"),
            read=_released,
        ),
        Shards(
            published=on_hub("echo840/OCRBench", "test"),
            task_split="test",
            columns=("dataset", "question", "question_type", "answer"),
        ),
        Tabled(
            published=in_kit("OCRBench.tsv"),
            table="OCRBench.tsv",
            task_split="test",
            columns={"question": "question", "answer": "answers", "category": "question_type"},
            made=lambda record: listed(record, "answers"),
        ),
    ),
)


@benchmark("ocrbench", forms=FORMS, metric=read_right, longest=128)
def ocrbench(folder: Folder, *, lowered: bool = False) -> Iterator[Sample]:
    """Reading of many kinds: an answer has to stand in what is said."""
    for number, (record, image) in enumerate(FORMS.rows(folder)):
        kind = record.text("question_type", "type")
        yield Sample(
            name=record.text_or_number("id") if record.has("id") else str(number),
            question=record.text("question"),
            answers=record.one_or_more("answers", "answer"),
            images=(image,),
            facts={"type": kind, "lowered": lowered},
            labels={"type": kind, **_set(record)},
        )


def _set(record: Record) -> dict[str, str]:
    """The data set that the question comes from, which a table does not say."""
    in_table = "index" in record.held
    return {} if in_table else {"set": record.text("dataset", "dataset_name")}
