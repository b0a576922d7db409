"""DocVQA: questions about scanned documents.

Mathew et al., arXiv:2007.00398. From https://rrc.cvc.uab.es/?ch=17, task 1, or from
https://huggingface.co/datasets/lmms-lab/DocVQA, whose other half is InfographicVQA.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foveate.eval.benchmarks.folder import benchmark, picture, records
from foveate.eval.benchmarks.shards import Hub
from foveate.eval.metrics import anls
from foveate.eval.sample import Sample

ASK = "\nAnswer the question using a single word or phrase."


FILES = ("val_v1.0*.json", "*.json")
HUB = Hub(repository="lmms-lab/DocVQA", inside="DocVQA", split="validation",
          columns=("questionId", "question"), lists=("answers",), released=FILES)  # fmt: skip


@benchmark("docvqa", holds="val_v1.0*.json (or test) and documents/", hub=HUB, metric=anls)
def docvqa(folder: Path) -> Iterator[Sample]:
    """Questions about scanned documents, by ANLS."""
    for record in HUB.rows(folder) or _released(folder):
        yield Sample(
            name=str(record["questionId"]),
            question=f"{record['question']}{ASK}",
            answers=tuple(record["answers"]),
            images=(record["image"],),
        )


def _released(folder: Path) -> Iterator[dict[str, Any]]:
    for record in records(folder, *FILES)["data"]:
        yield record | {"image": picture(folder, record["image"])}
