"""OCRBench: reading of many kinds.

Liu et al., arXiv:2305.07895. From https://github.com/Yuliang-Liu/MultimodalOCR, or from
https://huggingface.co/datasets/echo840/OCRBench.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foveate.eval.benchmarks.folder import benchmark, picture, records
from foveate.eval.benchmarks.shards import Hub
from foveate.eval.metrics import contains
from foveate.eval.sample import Sample

FILES = ("OCRBench*.json", "*.json")
HUB = Hub(repository="echo840/OCRBench", split="test", lists=("answer",), released=FILES,
          columns=("dataset", "question", "question_type"))  # fmt: skip
FORMULAE = "HME100k"  # its answers are compared without blanks, and in their own case


def read_right(prediction: str, sample: Sample) -> float:
    """1 if an answer stands in the prediction; the benchmark sums this up over 1,000 questions."""
    if sample.facts["set"] != FORMULAE:
        return contains(prediction, sample)
    said = "".join(prediction.split())
    return float(any("".join(answer.split()) in said for answer in sample.answers))


@benchmark("ocrbench", holds="OCRBench.json and the images", hub=HUB, metric=read_right,
           longest=100)  # fmt: skip
def ocrbench(folder: Path) -> Iterator[Sample]:
    """Reading of many kinds: an answer has to stand in what is said."""
    for number, record in enumerate(HUB.rows(folder) or _released(folder)):
        answers = record["answer"]
        yield Sample(
            name=str(record.get("id", number)),
            question=record["question"],
            answers=tuple(answers) if isinstance(answers, list) else (str(answers),),
            images=(record["image"],),
            facts={"set": record["dataset"], "type": record["question_type"]},
        )


def _released(folder: Path) -> Iterator[dict[str, Any]]:
    for record in records(folder, *FILES):
        path = record["image_path"]
        yield record | {
            "answer": record["answers"],
            "dataset": record["dataset_name"],
            "question_type": record["type"],
            "image": picture(folder, path, f"images/{path}"),
        }
