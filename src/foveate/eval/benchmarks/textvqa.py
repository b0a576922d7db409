"""TextVQA: questions about text in photographs.

Singh et al., arXiv:1904.08920. From https://textvqa.org/dataset, version 0.5.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from foveate.eval.benchmarks.folder import benchmark, picture, records
from foveate.eval.metrics import vqa_accuracy
from foveate.eval.sample import Sample

ASK = "\nAnswer the question using a single word or phrase."


@benchmark("textvqa", holds="TextVQA_0.5.1_val.json and train_images/", metric=vqa_accuracy)
def textvqa(folder: Path) -> Iterator[Sample]:
    """Questions about text in photographs, by what ten people answered."""
    for record in records(folder, "TextVQA_*_val.json")["data"]:
        yield Sample(
            name=str(record["question_id"]),
            question=f"{record['question']}{ASK}",
            answers=tuple(record["answers"]),
            images=(picture(folder, f"train_images/{record['image_id']}.jpg"),),
        )
