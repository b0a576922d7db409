"""TextCaps: captions of photographs with text.

Sidorov et al., arXiv:2003.12462. From https://textvqa.org/textcaps/dataset, version 0.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from foveate.eval.benchmarks.folder import benchmark, picture, records
from foveate.eval.metrics.cider import Corpus, cider
from foveate.eval.sample import Sample

ASK = "Provide a one-sentence caption for the provided image."


@benchmark(
    "textcaps", holds="TextCaps_0.1_val.json and train_images/", metric=cider, longest=64,
    reference=True,
)  # fmt: skip
def textcaps(folder: Path) -> Iterator[Sample]:
    """Captions of photographs with text, by CIDEr (0 to 10); what is rare, all captions say."""
    captions: dict[str, tuple[str, ...]] = {}  # a record is a caption: five of an image
    for record in records(folder, "TextCaps_*_val.json")["data"]:
        captions.setdefault(str(record["image_id"]), tuple(record["reference_strs"]))
    corpus = Corpus.of(captions.values())
    for name, references in captions.items():
        yield Sample(
            name=name,
            question=ASK,
            answers=references,
            images=(picture(folder, f"train_images/{name}.jpg"),),
            facts={"corpus": corpus},
        )
