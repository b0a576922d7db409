"""TextCaps: captions of photographs with text.

Sidorov et al., arXiv:2003.12462. From https://textvqa.org/textcaps/dataset, version 0.1, or from
https://huggingface.co/datasets/lmms-lab/TextCaps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from foveate.data import Folder, Record, read_record
from foveate.data.parquet import read_rows
from foveate.errors import InvalidInput
from foveate.prompts.sample import Sample
from foveate_lab.eval.benchmarks.folder import benchmark
from foveate_lab.eval.benchmarks.forms import BenchmarkRow, Forms, Published
from foveate_lab.eval.benchmarks.release import Release
from foveate_lab.eval.benchmarks.shards import Shards, on_hub
from foveate_lab.eval.benchmarks.textvqa import PHOTOGRAPHS
from foveate_lab.eval.metrics.cider import Corpus, cider

ASK = "Provide a one-sentence caption for the provided image."
SPLITS = ("val", "train")


def _released(folder: Folder, paths: Sequence[Path]) -> Iterator[BenchmarkRow]:
    (path,) = paths
    for record in _images(path):
        yield BenchmarkRow(record, folder.image(record, "image_id", *PHOTOGRAPHS))


def _images(path: Path) -> list[Record]:
    """A record for each image. Those of the release are one for each caption, and each has all."""
    records: dict[str, Record] = {}
    for record in read_record(path).records("data"):
        first = records.setdefault(record.text_or_number("image_id"), record)
        if _captions(first) != _captions(record):
            raise InvalidInput(
                f"{record.where}: its 'reference_strs' are not those of {first.where}, which is of "
                "the same image."
            )
    return list(records.values())


def _captions(record: Record) -> tuple[str, ...]:
    return record.texts("reference_strs", "caption_str", at_least=1)


RELEASE = Release(
    published=Published(
        "the authors",
        "TextCaps_0.1_val.json and train_images/",
        "https://textvqa.org/textcaps/dataset",
    ),
    splits={split: (f"TextCaps_*_{split}.json",) for split in SPLITS},
    read=_released,
    counted=lambda paths: len(_images(paths[0])),
)
SHARDS = Shards(
    published=on_hub("lmms-lab/TextCaps", "val"),
    task_split="val",
    columns=("image_id", "caption_str"),
)
FORMS = Forms("TextCaps", (RELEASE, SHARDS))


@benchmark("textcaps", forms=FORMS, metric=cider, longest=64, reference=True)
def textcaps(folder: Folder) -> Iterator[Sample]:
    """Captions of photographs with text, by CIDEr (0 to 10); what is rare, all captions say."""
    form, paths = FORMS.chosen(folder)
    captions = read_rows(paths, SHARDS.columns) if form is SHARDS else _images(paths[0])
    corpus = Corpus.of(_captions(record) for record in captions)
    for record, image in form.rows(folder, paths):
        yield Sample(
            name=record.text_or_number("image_id"),
            question=ASK,
            answers=_captions(record),
            images=(image,),
            facts={"corpus": corpus},
        )
