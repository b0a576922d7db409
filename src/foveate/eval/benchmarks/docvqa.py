"""DocVQA: questions about scanned documents.

Mathew et al., arXiv:2007.00398. From https://rrc.cvc.uab.es/?ch=17, task 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from foveate.eval.benchmarks.folder import benchmark, picture, records
from foveate.eval.metrics import anls
from foveate.eval.sample import Sample

ASK = "\nAnswer the question using a single word or phrase."


@benchmark("docvqa", holds="val_v1.0*.json (or test) and documents/", metric=anls)
def docvqa(folder: Path) -> Iterator[Sample]:
    """Questions about scanned documents, by ANLS."""
    for record in records(folder, "val_v1.0*.json", "*.json")["data"]:
        yield Sample(
            name=str(record["questionId"]),
            question=f"{record['question']}{ASK}",
            answers=tuple(record["answers"]),
            images=(picture(folder, record["image"]),),
        )
