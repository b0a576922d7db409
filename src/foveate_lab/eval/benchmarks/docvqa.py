"""DocVQA: questions about scanned documents.

Mathew et al., arXiv:2007.00398. From https://rrc.cvc.uab.es/?ch=17, task 1, from
https://huggingface.co/datasets/lmms-lab/DocVQA, whose other half is InfographicVQA, or as
VLMEvalKit's DocVQA_VAL.tsv. Its test split has no answers.
"""

from __future__ import annotations

from collections.abc import Iterator

from foveate.data import Folder
from foveate.prompts.sample import Sample
from foveate_lab.eval.benchmarks.folder import Benchmark
from foveate_lab.eval.benchmarks.source import Source, in_kit, on_hub
from foveate_lab.eval.benchmarks.sources import Sources
from foveate_lab.eval.metrics import anls

ASK = "\nAnswer the question using a single word or phrase."
SOURCES = Sources(
    "DocVQA",
    Source(
        contents="val_v1.0*.json and documents/, or the archives' own folders spdocvqa_qas/ and "
        "spdocvqa_images/",
        address="https://rrc.cvc.uab.es/?ch=17",
        splits={split: (f"{split}_v1.0*.json",) for split in ("val", "test", "train")},
        folders=("", "spdocvqa_qas/", "val/"),
        records_field="data",
        image_fields=("image",),
        image_places=("{}", "documents/{base}", "spdocvqa_images/{base}", "val/{}"),
    ),
    on_hub("lmms-lab/DocVQA", "validation", "questionId", "question", "answers", folder="DocVQA/"),
    in_kit(
        "DocVQA_VAL.tsv",
        "val",
        {"index": "questionId", "question": "question", "answer": "answers"},
        lists=("answers",),
    ),
)


@Benchmark("docvqa", SOURCES, metric=anls)
def docvqa(folder: Folder) -> Iterator[Sample]:
    """Questions about scanned documents, by ANLS."""
    for record, images in SOURCES.rows(folder):
        yield Sample(
            name=record.text_or_number("questionId"),
            question=f"{record.text('question')}{ASK}",
            answers=record.texts("answers", at_least=1),
            images=images,
        )
