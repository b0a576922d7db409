"""DocVQA: questions about scanned documents.

Mathew et al., arXiv:2007.00398. From https://rrc.cvc.uab.es/?ch=17, task 1, from
https://huggingface.co/datasets/lmms-lab/DocVQA, whose other half is InfographicVQA, or as
VLMEvalKit's DocVQA_VAL.tsv. Its test split has no answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from foveate.data import Folder, read_record
from foveate.prompts.sample import Sample
from foveate_lab.eval.benchmarks.folder import benchmark
from foveate_lab.eval.benchmarks.forms import BenchmarkRow, Forms, Published
from foveate_lab.eval.benchmarks.release import Release
from foveate_lab.eval.benchmarks.shards import Shards, on_hub
from foveate_lab.eval.benchmarks.tabled import Tabled, in_kit
from foveate_lab.eval.metrics import anls

ASK = "\nAnswer the question using a single word or phrase."
SPLITS = ("val", "test", "train")


def _released(folder: Folder, paths: Sequence[Path]) -> Iterator[BenchmarkRow]:
    (path,) = paths
    for record in read_record(path).records("data"):
        places = ("{}", "documents/{base}", "spdocvqa_images/{base}", "val/{}")
        yield BenchmarkRow(record, folder.image(record, "image", *places))


FORMS = Forms(
    "DocVQA",
    (
        Release(
            published=Published(
                "the authors",
                "val_v1.0*.json and documents/, or the archives' own folders spdocvqa_qas/ and "
                "spdocvqa_images/",
                "https://rrc.cvc.uab.es/?ch=17",
            ),
            splits={split: (f"{split}_v1.0*.json",) for split in SPLITS},
            places=("", "spdocvqa_qas/", "val/"),
            read=_released,
        ),
        Shards(
            published=on_hub("lmms-lab/DocVQA", "validation"),
            inside="DocVQA",
            task_split="validation",
            columns=("questionId", "question", "answers"),
        ),
        Tabled(
            published=in_kit("DocVQA_VAL.tsv"),
            table="DocVQA_VAL.tsv",
            task_split="val",
            columns={"index": "questionId", "question": "question", "answer": "answers"},
            lists=("answers",),
        ),
    ),
)


@benchmark("docvqa", forms=FORMS, metric=anls)
def docvqa(folder: Folder) -> Iterator[Sample]:
    """Questions about scanned documents, by ANLS."""
    for record, image in FORMS.rows(folder):
        yield Sample(
            name=record.text_or_number("questionId"),
            question=f"{record.text('question')}{ASK}",
            answers=record.texts("answers", at_least=1),
            images=(image,),
        )
