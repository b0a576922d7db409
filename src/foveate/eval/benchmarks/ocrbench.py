"""OCRBench: reading of many kinds.

Liu et al., arXiv:2305.07895. From https://github.com/Yuliang-Liu/MultimodalOCR, or from
https://huggingface.co/datasets/echo840/OCRBench, or as VLMEvalKit's OCRBench.tsv. New lines are
blanks, on both sides; formulae are compared without either, in their own case. lmms-eval, with
which MixKV was measured, lowers the case of what is said of a formula and not of the answer:
``lowered``.
"""

from __future__ import annotations

from collections.abc import Iterator

from PIL import Image

from foveate.data import Folder, Record, listed
from foveate.eval.benchmarks.folder import benchmark
from foveate.eval.benchmarks.shards import Hub
from foveate.eval.metrics import contains
from foveate.eval.sample import Sample

FILES = ("OCRBench*.json", "*.json")
HUB = Hub(
    repository="echo840/OCRBench",
    split="test",
    released=FILES,
    columns=("dataset", "question", "question_type", "answer"),
    table="OCRBench.tsv",
    table_columns={"question": "question", "answer": "answers", "category": "question_type"},
)
FORMULAE = "Handwritten Mathematical Expression Recognition"


def read_right(prediction: str, sample: Sample) -> float:
    """1 if an answer stands in the prediction; the benchmark sums this up over 1,000 questions."""
    if sample.facts["type"] != FORMULAE:
        return contains(prediction, sample)
    said = _bare(prediction.lower() if sample.facts["lowered"] else prediction)
    return float(any(_bare(answer) in said for answer in sample.answers))


def _bare(text: str) -> str:
    return text.strip().replace("\n", "").replace(" ", "")


@benchmark(
    "ocrbench", holds="OCRBench.json and the images", hub=HUB, metric=read_right, longest=128
)
def ocrbench(folder: Folder, *, lowered: bool = False) -> Iterator[Sample]:
    """Reading of many kinds: an answer has to stand in what is said."""
    for number, (record, image) in enumerate(HUB.rows(folder) or _released(folder)):
        kind = record.text("question_type", "type")
        yield Sample(
            name=record.text_or_number("id") if record.has("id") else str(number),
            question=record.text("question"),
            answers=_answers(record),
            images=(image,),
            facts={"type": kind, "lowered": lowered},
            labels={"type": kind, **_set(record)},
        )


def _answers(record: Record) -> tuple[str, ...]:
    """A list, or in a table the Python text of one."""
    in_table = "index" in record.held
    return (
        listed(record, "answers").one_or_more("answers")
        if in_table
        else record.one_or_more("answer", "answers")
    )


def _set(record: Record) -> dict[str, str]:
    """The data set that the question comes from, which a table does not say."""
    in_table = "index" in record.held
    return {} if in_table else {"set": record.text("dataset", "dataset_name")}


def _released(folder: Folder) -> Iterator[tuple[Record, Image.Image]]:
    for record in folder.records(*FILES):
        yield record, folder.image(record, "image_path", "{}", "images/{}")
