"""ChartQA: questions about charts, some asked by people, some generated.

Masry et al., arXiv:2203.10244. From https://github.com/vis-nlp/ChartQA.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from foveate.eval.benchmarks.folder import benchmark, picture, records
from foveate.eval.metrics import relaxed
from foveate.eval.sample import Sample

ASK = "\nAnswer the question with a single word."
PARTS = ("human", "augmented")


@benchmark("chartqa", holds="test_human.json, test_augmented.json and png/", metric=relaxed)
def chartqa(folder: Path) -> Iterator[Sample]:
    """Questions about charts, by relaxed accuracy; what people asked comes first."""
    for part in PARTS:
        for number, record in enumerate(records(folder, f"*_{part}.json")):
            yield Sample(
                name=f"{part}/{number}",
                question=f"{record['query']}{ASK}",
                answers=(str(record["label"]),),
                images=(picture(folder, f"png/{record['imgname']}", record["imgname"]),),
                facts={"part": part},
            )
