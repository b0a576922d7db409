"""OCRBench: reading of many kinds.

Liu et al., arXiv:2305.07895. From https://github.com/Yuliang-Liu/MultimodalOCR, or from
https://huggingface.co/datasets/echo840/OCRBench, or as VLMEvalKit's OCRBench.tsv. New lines are
blanks, on both sides; formulae are compared without either, in their own case. lmms-eval, with
which MixKV was measured, lowers the case of what is said of a formula and not of the answer:
``lowered``.
"""

from __future__ import annotations

from collections.abc import Iterator

from foveate.data import Folder, Record, listed
from foveate.prompts.sample import Sample
from foveate_lab.eval.benchmarks.folder import Benchmark
from foveate_lab.eval.benchmarks.source import Source, in_kit, on_hub
from foveate_lab.eval.benchmarks.sources import Sources
from foveate_lab.eval.metrics import contains

FORMULAE = "Handwritten Mathematical Expression Recognition"


def read_right(prediction: str, sample: Sample) -> float:
    """Return 1 if the prediction has an answer in it; the benchmark sums 1,000 questions up."""
    if sample.facts["type"] != FORMULAE:
        return contains(prediction, sample)
    formula = _bare(prediction.lower() if sample.facts["lowered"] else prediction)
    return float(any(_bare(answer) in formula for answer in sample.answers))


def _bare(text: str) -> str:
    return text.strip().replace("\n", "").replace(" ", "")


SOURCES = Sources(
    "OCRBench",
    Source(
        contents="OCRBench.json (or OCRBench/ with it) beside OCRBench_Images/, or with the images",
        address="https://github.com/Yuliang-Liu/MultimodalOCR",
        splits={"test": ("OCRBench.json",)},
        folders=("", "OCRBench/"),
        image_fields=("image_path",),
        image_places=("{}", "images/{}", "OCRBench_Images/{}"),
    ),
    on_hub("echo840/OCRBench", "test", "dataset", "question", "question_type", "answer"),
    in_kit(
        "OCRBench.tsv",
        "test",
        {"question": "question", "answer": "answers", "category": "question_type"},
        prepare=lambda record, images: listed(record, "answers"),
    ),
)


@Benchmark(
    "ocrbench",
    SOURCES,
    metric=read_right,
    longest=128,
    summary="Reading of many kinds: an answer has to stand in what is said.",
)
def ocrbench(folder: Folder, *, lowered: bool = False) -> Iterator[Sample]:
    """Yield questions whose answers are read off an image, of ten kinds."""
    for number, (record, images) in enumerate(SOURCES.rows(folder)):
        kind = record.text("question_type", "type")
        yield Sample(
            name=record.text_or_number("id") if record.has("id") else str(number),
            question=record.text("question"),
            answers=record.one_or_more("answers", "answer"),
            images=images,
            facts={"type": kind, "lowered": lowered},
            labels={"type": kind, **_set(record)},
        )


def _set(record: Record) -> dict[str, str]:
    """Return the data set that the question comes from, which a table lacks."""
    in_table = "index" in record.fields
    return {} if in_table else {"set": record.text("dataset", "dataset_name")}
