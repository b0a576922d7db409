"""TextCaps: captions of photographs with text.

Sidorov et al., arXiv:2003.12462. From https://textvqa.org/textcaps/dataset, version 0.1, or from
https://huggingface.co/datasets/lmms-lab/TextCaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from PIL import Image

from foveate.data import Folder, Record
from foveate.errors import InvalidInput
from foveate.eval.benchmarks.folder import benchmark
from foveate.eval.benchmarks.shards import Hub
from foveate.eval.metrics.cider import Corpus, cider
from foveate.eval.sample import Sample

ASK = "Provide a one-sentence caption for the provided image."


FILES = ("TextCaps_*_val.json",)
HUB = Hub(
    repository="lmms-lab/TextCaps", split="val", columns=("image_id", "caption_str"), released=FILES
)


@benchmark(
    "textcaps",
    holds="TextCaps_0.1_val.json and train_images/",
    hub=HUB,
    metric=cider,
    longest=64,
    reference=True,
)
def textcaps(folder: Folder) -> Iterator[Sample]:
    """Captions of photographs with text, by CIDEr (0 to 10); what is rare, all captions say."""
    rows = HUB.rows(folder)
    captions = list(HUB.values(folder, "image_id", "caption_str")) if rows else _images(folder)
    corpus = Corpus.of(_captions(record) for record in captions)
    for record, image in rows or _released(folder, captions):
        yield Sample(
            name=record.text_or_number("image_id"),
            question=ASK,
            answers=_captions(record),
            images=(image,),
            facts={"corpus": corpus},
        )


def _captions(record: Record) -> tuple[str, ...]:
    return record.texts("reference_strs", "caption_str", at_least=1)


def _images(folder: Folder) -> list[Record]:
    """A record for each image. Those of the release are one for each caption, and each has all."""
    found: dict[str, Record] = {}
    for record in folder.record(*FILES).records("data"):
        first = found.setdefault(record.text_or_number("image_id"), record)
        if _captions(first) != _captions(record):
            raise InvalidInput(
                f"{record.where}: its 'reference_strs' are not those of {first.where}, which is of "
                "the same image."
            )
    return list(found.values())


def _released(folder: Folder, captions: Iterable[Record]) -> Iterator[tuple[Record, Image.Image]]:
    for record in captions:
        yield record, folder.image(record, "image_id", "train_images/{}.jpg")
