"""TextCaps: captions of photographs with text.

Sidorov et al., arXiv:2003.12462. From https://textvqa.org/textcaps/dataset, version 0.1, or from
https://huggingface.co/datasets/lmms-lab/TextCaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from foveate.data import Folder, Record, read_record
from foveate.data.parquet import read_rows
from foveate.errors import InvalidInput
from foveate.prompts.sample import Sample
from foveate_lab.eval.benchmarks.folder import Benchmark
from foveate_lab.eval.benchmarks.source import Source, on_hub
from foveate_lab.eval.benchmarks.sources import Sources
from foveate_lab.eval.benchmarks.textvqa import PHOTOGRAPHS
from foveate_lab.eval.metrics.cider import Corpus, cider

ASK = "Provide a one-sentence caption for the provided image."


def _one_for_each_image(paths: Sequence[Path]) -> Iterable[Record]:
    """Return one record for each image; the release has one for each caption, with all of them."""
    records: dict[str, Record] = {}
    for record in read_record(paths[0]).records("data"):
        first = records.setdefault(record.text_or_number("image_id"), record)
        if _captions(first) != _captions(record):
            raise InvalidInput(
                f"{record.where}: its 'reference_strs' are not those of {first.where}, which is of "
                "the same image."
            )
    return records.values()


def _captions(record: Record) -> tuple[str, ...]:
    return record.texts("reference_strs", "caption_str", at_least=1)


SHARDS = on_hub("lmms-lab/TextCaps", "val", "image_id", "caption_str")
SOURCES = Sources(
    "TextCaps",
    Source(
        contents="TextCaps_0.1_val.json and train_images/",
        address="https://textvqa.org/textcaps/dataset",
        splits={split: (f"TextCaps_*_{split}.json",) for split in ("val", "train")},
        read=_one_for_each_image,
        image_fields=("image_id",),
        image_places=PHOTOGRAPHS,
    ),
    SHARDS,
)


@Benchmark("textcaps", SOURCES, metric=cider, longest=64, reference=True)
def textcaps(folder: Folder) -> Iterator[Sample]:
    """Captions of photographs with text, by CIDEr (0 to 10); what is rare, all captions say."""
    source, paths = SOURCES.chosen(folder)
    columns = SHARDS.columns
    records = read_rows(paths, columns) if source is SHARDS else _one_for_each_image(paths)
    corpus = Corpus.of(_captions(record) for record in records)
    for record, images in source.rows(folder, paths):
        yield Sample(
            name=record.text_or_number("image_id"),
            question=ASK,
            answers=_captions(record),
            images=images,
            facts={"corpus": corpus},
        )
