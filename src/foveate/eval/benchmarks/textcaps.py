"""TextCaps: captions of photographs with text.

Sidorov et al., arXiv:2003.12462. From https://textvqa.org/textcaps/dataset, version 0.1, or from
https://huggingface.co/datasets/lmms-lab/TextCaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from foveate.eval.benchmarks.folder import benchmark, picture, records
from foveate.eval.benchmarks.shards import Hub
from foveate.eval.metrics.cider import Corpus, cider
from foveate.eval.sample import Sample

ASK = "Provide a one-sentence caption for the provided image."


FILES = ("TextCaps_*_val.json",)
HUB = Hub(repository="lmms-lab/TextCaps", split="val", columns=("image_id",),
          lists=("caption_str",), released=FILES)  # fmt: skip


@benchmark(
    "textcaps", holds="TextCaps_0.1_val.json and train_images/", hub=HUB, metric=cider, longest=64,
    reference=True,
)  # fmt: skip
def textcaps(folder: Path) -> Iterator[Sample]:
    """Captions of photographs with text, by CIDEr (0 to 10); what is rare, all captions say."""
    rows = HUB.rows(folder)
    captions = _captions(folder) if rows is None else _captions_inside(folder)
    corpus = Corpus.of(captions.values())
    for record in rows or _released(folder, captions):
        name = str(record["image_id"])
        yield Sample(
            name=name,
            question=ASK,
            answers=captions[name],
            images=(record["image"],),
            facts={"corpus": corpus},
        )


def _captions(folder: Path) -> dict[str, tuple[str, ...]]:
    """Of every image; a record of the release is a caption, and has the others, too."""
    found: dict[str, tuple[str, ...]] = {}
    for record in records(folder, *FILES)["data"]:
        found.setdefault(str(record["image_id"]), tuple(record["reference_strs"]))
    return found


def _captions_inside(folder: Path) -> dict[str, tuple[str, ...]]:
    """The same, of shards; a row is an image."""
    rows = HUB.values(folder, "image_id", "caption_str")
    return {str(row["image_id"]): tuple(row["caption_str"]) for row in rows}


def _released(folder: Path, names: Iterable[str]) -> Iterator[dict[str, Any]]:
    for name in names:
        yield {"image_id": name, "image": picture(folder, f"train_images/{name}.jpg")}
