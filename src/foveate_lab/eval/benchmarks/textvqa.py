"""TextVQA: questions about text in photographs.

Singh et al., arXiv:1904.08920. From https://textvqa.org/dataset, version 0.5.1, or from
https://huggingface.co/datasets/lmms-lab/textvqa, or as VLMEvalKit's TextVQA_VAL.tsv. Asked as by
lmms-eval, with which MixKV was measured: of a question the first letter alone is large.
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
from foveate_lab.eval.metrics import vqa_accuracy

ASK = "\nAnswer the question using a single word or phrase."
PHOTOGRAPHS = ("train_images/{}.jpg", "train_val_images/train_images/{}.jpg", "{}.jpg")
SPLITS = ("val", "train", "test")


def _released(folder: Folder, paths: Sequence[Path]) -> Iterator[BenchmarkRow]:
    (path,) = paths
    for record in read_record(path).records("data"):
        yield BenchmarkRow(record, folder.image(record, "image_id", *PHOTOGRAPHS))


FORMS = Forms(
    "TextVQA",
    (
        Release(
            published=Published(
                "the authors",
                "TextVQA_0.5.1_val.json and train_images/",
                "https://textvqa.org/dataset",
            ),
            splits={split: (f"TextVQA_*_{split}.json",) for split in SPLITS},
            read=_released,
        ),
        Shards(
            published=on_hub("lmms-lab/textvqa", "validation"),
            task_split="validation",
            columns=("question_id", "question", "answers"),
        ),
        Tabled(
            published=in_kit("TextVQA_VAL.tsv"),
            table="TextVQA_VAL.tsv",
            task_split="val",
            columns={"index": "question_id", "question": "question", "answer": "answers"},
            lists=("answers",),
        ),
    ),
)


@benchmark("textvqa", forms=FORMS, metric=vqa_accuracy, longest=128)
def textvqa(folder: Folder) -> Iterator[Sample]:
    """Questions about text in photographs, by what ten people answered."""
    for record, image in FORMS.rows(folder):
        yield Sample(
            name=record.text_or_number("question_id"),
            question=f"{record.text('question').capitalize()}{ASK}",
            answers=record.texts("answers", at_least=1),
            images=(image,),
        )
