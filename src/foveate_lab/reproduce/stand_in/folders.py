"""Data folder of a stand-in, with one folder for each benchmark."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from foveate_lab.reproduce.stand_in import images, multi_image, screens, texts
from foveate_lab.reproduce.stand_in.files import Writer

WRITERS: dict[str, Callable[[Writer], None]] = {
    "docvqa": images.docvqa,
    "ocrbench": images.ocrbench,
    "textvqa": images.textvqa,
    "textcaps": images.textcaps,
    "chartqa": images.chartqa,
    "mm_vet": images.mm_vet,
    "mathvista": images.mathvista,
    "llava_description": images.llava_description,
    "llava_instruct": images.llava_instruct,
    "screenspot_v2": screens.screenspot_v2,
    "milebench": multi_image.milebench,
    "longbench": texts.longbench,
    "loogle": texts.loogle,
    "needle": texts.needle,
}


def write(folder: Path, count: int, names: Collection[str] = tuple(WRITERS)) -> None:
    """Write ``count`` samples of each of these benchmarks, unless their folders exist.

    Raises:
        CannotWrite: the disk is full, or the folder is not to be written to.
    """
    for name in names:
        path = folder / name
        if not path.exists():
            writer = Writer(path, count)
            WRITERS[name](writer)
            writer.done()
