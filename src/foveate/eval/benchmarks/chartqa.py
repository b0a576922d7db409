"""ChartQA: questions about charts, some asked by people, some generated.

Masry et al., arXiv:2203.10244. From https://github.com/vis-nlp/ChartQA, or from
https://huggingface.co/datasets/lmms-lab/ChartQA.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from PIL import Image

from foveate.data import Folder, Record
from foveate.eval.benchmarks.folder import benchmark
from foveate.eval.benchmarks.shards import Hub
from foveate.eval.metrics import relaxed
from foveate.eval.sample import Sample

ASK = "\nAnswer the question with a single word."
PARTS = ("human", "augmented")


HUB = Hub(
    repository="lmms-lab/ChartQA",
    split="test",
    columns=("type", "question", "answer"),
    released=tuple(f"*_{part}.json" for part in PARTS),
)


@benchmark(
    "chartqa",
    holds="test_human.json, test_augmented.json and png/",
    hub=HUB,
    metric=relaxed,
    longest=16,
)
def chartqa(folder: Folder) -> Iterator[Sample]:
    """Questions about charts, by relaxed accuracy; what people asked comes first."""
    numbers = Counter[str]()
    for record, image in HUB.rows(folder) or _released(folder):
        part = record.text("type").removesuffix("_test")
        yield Sample(
            name=f"{part}/{numbers[part]}",
            question=f"{record.text('question', 'query')}{ASK}",
            answers=(record.text_or_number("answer", "label"),),
            images=(image,),
            labels={"part": part},
        )
        numbers[part] += 1


def _released(folder: Folder) -> Iterator[tuple[Record, Image.Image]]:
    for part in PARTS:
        for record in folder.records(f"*_{part}.json"):
            yield record.also(type=part), folder.image(record, "imgname", "png/{}", "{}")
