"""TextVQA: questions about text in photographs.

Singh et al., arXiv:1904.08920. From https://textvqa.org/dataset, version 0.5.1, or from
https://huggingface.co/datasets/lmms-lab/textvqa.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foveate.eval.benchmarks.folder import benchmark, picture, records
from foveate.eval.benchmarks.shards import Hub
from foveate.eval.metrics import vqa_accuracy
from foveate.eval.sample import Sample

ASK = "\nAnswer the question using a single word or phrase."


FILES = ("TextVQA_*_val.json",)
HUB = Hub(repository="lmms-lab/textvqa", split="validation", columns=("question_id", "question"),
          lists=("answers",), released=FILES)  # fmt: skip


@benchmark("textvqa", holds="TextVQA_0.5.1_val.json and train_images/", hub=HUB,
           metric=vqa_accuracy)  # fmt: skip
def textvqa(folder: Path) -> Iterator[Sample]:
    """Questions about text in photographs, by what ten people answered."""
    for record in HUB.rows(folder) or _released(folder):
        yield Sample(
            name=str(record["question_id"]),
            question=f"{record['question']}{ASK}",
            answers=tuple(record["answers"]),
            images=(record["image"],),
        )


def _released(folder: Path) -> Iterator[dict[str, Any]]:
    for record in records(folder, *FILES)["data"]:
        yield record | {"image": picture(folder, f"train_images/{record['image_id']}.jpg")}
