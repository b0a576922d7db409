"""TextVQA: questions about text in photographs.

Singh et al., arXiv:1904.08920. From https://textvqa.org/dataset, version 0.5.1, or from
https://huggingface.co/datasets/lmms-lab/textvqa. Asked as by lmms-eval, with which MixKV was
measured: of a question the first letter alone is large.
"""

from __future__ import annotations

from collections.abc import Iterator

from PIL import Image

from foveate.data import Folder, Record
from foveate.eval.benchmarks.folder import benchmark
from foveate.eval.benchmarks.shards import Hub
from foveate.eval.metrics import vqa_accuracy
from foveate.eval.sample import Sample

ASK = "\nAnswer the question using a single word or phrase."


FILES = ("TextVQA_*_val.json",)
HUB = Hub(
    repository="lmms-lab/textvqa",
    split="validation",
    released=FILES,
    columns=("question_id", "question", "answers"),
)


@benchmark(
    "textvqa",
    holds="TextVQA_0.5.1_val.json and train_images/",
    hub=HUB,
    metric=vqa_accuracy,
    longest=128,
)
def textvqa(folder: Folder) -> Iterator[Sample]:
    """Questions about text in photographs, by what ten people answered."""
    for record, image in HUB.rows(folder) or _released(folder):
        yield Sample(
            name=record.text_or_number("question_id"),
            question=f"{record.text('question').capitalize()}{ASK}",
            answers=record.texts("answers", at_least=1),
            images=(image,),
        )


def _released(folder: Folder) -> Iterator[tuple[Record, Image.Image]]:
    for record in folder.record(*FILES).records("data"):
        yield record, folder.image(record, "image_id", "train_images/{}.jpg")
