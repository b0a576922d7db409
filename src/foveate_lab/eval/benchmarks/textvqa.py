"""TextVQA: questions about text in photographs.

Singh et al., arXiv:1904.08920. From https://textvqa.org/dataset, version 0.5.1, or from
https://huggingface.co/datasets/lmms-lab/textvqa, or as VLMEvalKit's TextVQA_VAL.tsv. Asked as by
lmms-eval, with which MixKV was measured: of a question the first letter alone is large.
"""

from __future__ import annotations

from collections.abc import Iterator

from foveate.data import Folder
from foveate.prompts.sample import Sample
from foveate_lab.eval.benchmarks.folder import Benchmark
from foveate_lab.eval.benchmarks.source import Source, in_kit, on_hub
from foveate_lab.eval.benchmarks.sources import Sources
from foveate_lab.eval.metrics import vqa_accuracy

ASK = "\nAnswer the question using a single word or phrase."
PHOTOGRAPHS = ("train_images/{}.jpg", "train_val_images/train_images/{}.jpg", "{}.jpg")
SOURCES = Sources(
    "TextVQA",
    Source(
        contents="TextVQA_0.5.1_val.json and train_images/",
        address="https://textvqa.org/dataset",
        splits={split: (f"TextVQA_*_{split}.json",) for split in ("val", "train", "test")},
        records_field="data",
        image_fields=("image_id",),
        image_places=PHOTOGRAPHS,
    ),
    on_hub("lmms-lab/textvqa", "validation", "question_id", "question", "answers"),
    in_kit(
        "TextVQA_VAL.tsv",
        "val",
        {"index": "question_id", "question": "question", "answer": "answers"},
        lists=("answers",),
    ),
)


@Benchmark("textvqa", SOURCES, metric=vqa_accuracy, longest=128)
def textvqa(folder: Folder) -> Iterator[Sample]:
    """Questions about text in photographs, by what ten people answered."""
    for record, images in SOURCES.rows(folder):
        yield Sample(
            name=record.text_or_number("question_id"),
            question=f"{record.text('question').capitalize()}{ASK}",
            answers=record.texts("answers", at_least=1),
            images=images,
        )
