"""OCRBench: reading of many kinds.

Liu et al., arXiv:2305.07895. From https://github.com/Yuliang-Liu/MultimodalOCR, or from
https://huggingface.co/datasets/echo840/OCRBench.
"""

from __future__ import annotations

from collections.abc import Iterator

from PIL import Image

from foveate.data import Folder, Record
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
)
FORMULAE = "HME100k"  # its answers are compared without blanks, and in their own case


def read_right(prediction: str, sample: Sample) -> float:
    """1 if an answer stands in the prediction; the benchmark sums this up over 1,000 questions."""
    if sample.facts["set"] != FORMULAE:
        return contains(prediction, sample)
    said = "".join(prediction.split())
    return float(any("".join(answer.split()) in said for answer in sample.answers))


@benchmark(
    "ocrbench", holds="OCRBench.json and the images", hub=HUB, metric=read_right, longest=100
)
def ocrbench(folder: Folder) -> Iterator[Sample]:
    """Reading of many kinds: an answer has to stand in what is said."""
    for number, (record, image) in enumerate(HUB.rows(folder) or _released(folder)):
        yield Sample(
            name=record.text_or_number("id") if record.has("id") else str(number),
            question=record.text("question"),
            answers=record.one_or_more("answer", "answers"),
            images=(image,),
            facts={
                "set": record.text("dataset", "dataset_name"),
                "type": record.text("question_type", "type"),
            },
        )


def _released(folder: Folder) -> Iterator[tuple[Record, Image.Image]]:
    for record in folder.records(*FILES):
        yield record, folder.image(record, "image_path", "{}", "images/{}")
