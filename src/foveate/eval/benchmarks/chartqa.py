"""ChartQA: questions about charts, some asked by people, some generated.

Masry et al., arXiv:2203.10244. From https://github.com/vis-nlp/ChartQA, or from
https://huggingface.co/datasets/lmms-lab/ChartQA.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foveate.eval.benchmarks.folder import benchmark, picture, records
from foveate.eval.benchmarks.shards import Hub
from foveate.eval.metrics import relaxed
from foveate.eval.sample import Sample

ASK = "\nAnswer the question with a single word."
PARTS = ("human", "augmented")


HUB = Hub(repository="lmms-lab/ChartQA", split="test", columns=("type", "question", "answer"),
          released=tuple(f"*_{part}.json" for part in PARTS))  # fmt: skip


@benchmark("chartqa", holds="test_human.json, test_augmented.json and png/", hub=HUB,
           metric=relaxed)  # fmt: skip
def chartqa(folder: Path) -> Iterator[Sample]:
    """Questions about charts, by relaxed accuracy; what people asked comes first."""
    numbers = Counter[str]()
    for record in HUB.rows(folder) or _released(folder):
        part = record["type"].removesuffix("_test")
        yield Sample(
            name=f"{part}/{numbers[part]}",
            question=f"{record['question']}{ASK}",
            answers=(str(record["answer"]),),
            images=(record["image"],),
            facts={"part": part},
        )
        numbers[part] += 1


def _released(folder: Path) -> Iterator[dict[str, Any]]:
    for part in PARTS:
        for record in records(folder, f"*_{part}.json"):
            image = picture(folder, f"png/{record['imgname']}", record["imgname"])
            yield {"type": part, "question": record["query"], "answer": record["label"],
                   "image": image}  # fmt: skip
