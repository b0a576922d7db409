"""OCRBench: reading of many kinds.

Liu et al., arXiv:2305.07895. From https://github.com/Yuliang-Liu/MultimodalOCR.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from foveate.eval.benchmarks.folder import benchmark, picture, records
from foveate.eval.metrics import contains
from foveate.eval.sample import Sample

FORMULAE = "HME100k"  # its answers are compared without blanks, and in their own case


def read_right(prediction: str, sample: Sample) -> float:
    """1 if an answer stands in the prediction; the benchmark sums this up over 1,000 questions."""
    if sample.facts["set"] != FORMULAE:
        return contains(prediction, sample)
    said = "".join(prediction.split())
    return float(any("".join(answer.split()) in said for answer in sample.answers))


@benchmark("ocrbench", holds="OCRBench.json and the images", metric=read_right, longest=100)
def ocrbench(folder: Path) -> Iterator[Sample]:
    """Reading of many kinds: an answer has to stand in what is said."""
    for record in records(folder, "OCRBench*.json", "*.json"):
        answers = record["answers"]
        yield Sample(
            name=str(record["id"]),
            question=record["question"],
            answers=tuple(answers) if isinstance(answers, list) else (str(answers),),
            images=(picture(folder, record["image_path"], f"images/{record['image_path']}"),),
            facts={"set": record["dataset_name"], "type": record["type"]},
        )
