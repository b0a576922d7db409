"""DocVQA: questions about scanned documents.

Mathew et al., arXiv:2007.00398. From https://rrc.cvc.uab.es/?ch=17, task 1, or from
https://huggingface.co/datasets/lmms-lab/DocVQA, whose other half is InfographicVQA.
"""

from __future__ import annotations

from collections.abc import Iterator

from PIL import Image

from foveate.data import Folder, Record
from foveate.eval.benchmarks.folder import benchmark
from foveate.eval.benchmarks.shards import Hub
from foveate.eval.metrics import anls
from foveate.eval.sample import Sample

ASK = "\nAnswer the question using a single word or phrase."


FILES = ("val_v1.0*.json", "*.json")
HUB = Hub(
    repository="lmms-lab/DocVQA",
    inside="DocVQA",
    split="validation",
    columns=("questionId", "question", "answers"),
    released=FILES,
)


@benchmark("docvqa", holds="val_v1.0*.json (or test) and documents/", hub=HUB, metric=anls)
def docvqa(folder: Folder) -> Iterator[Sample]:
    """Questions about scanned documents, by ANLS."""
    for record, image in HUB.rows(folder) or _released(folder):
        yield Sample(
            name=record.text_or_number("questionId"),
            question=f"{record.text('question')}{ASK}",
            answers=record.texts("answers", at_least=1),
            images=(image,),
        )


def _released(folder: Folder) -> Iterator[tuple[Record, Image.Image]]:
    for record in folder.record(*FILES).records("data"):
        yield record, folder.image(record, "image", "{}")
