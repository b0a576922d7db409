"""SROIE: four fields of scanned receipts.

Huang et al., arXiv:2103.10213. From https://github.com/zzzDavid/ICDAR-2019-SROIE, or from
https://rrc.cvc.uab.es/?ch=13, as the challenge first released it or in its later archives. Receipts
come in the order of their names' hashes, so that the first N are a fair sample: scans of a merchant
follow each other in the release. A third of them are of eight merchants, so they are split by
merchant: policies are chosen on ``tuning``, and measured on ``test``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from foveate.data import Folder, Record, read_record
from foveate.errors import InvalidInput
from foveate.prompts.sample import Sample
from foveate_lab.eval.benchmarks.folder import Benchmark
from foveate_lab.eval.benchmarks.source import Source
from foveate_lab.eval.benchmarks.sources import Sources

Merchants = Literal["test", "tuning", "all"]
"""Half of the merchants, by a hash of their name, or all."""
BRIEFLY = "\nAnswer the question using a single word or phrase."
QUESTIONS = {
    "total": "What is the total?",
    "date": "What is the date?",
    "company": "What is the company?",
    "address": "What is the address?",
}
_CURRENCY = re.compile(r"^(?:RM|MYR|SR|\$)\s*")


def field_right(prediction: str, sample: Sample) -> float:
    """Return 1 if the field is right: see :func:`normalised`."""
    facts = sample.facts
    right, predicted = (
        normalised(text, facts["field"], letters=facts["compare"] == "letters")
        for text in (sample.answers[0], prediction)
    )
    return float(right == predicted)


def normalised(text: str, field: str, *, letters: bool = False) -> str:
    """Return a field's text as it is compared.

    In capitals, as the annotations are, with single blanks; totals without their currency and
    without the commas between thousands. ``letters``: letters and digits only; totals keep points.
    """
    text = " ".join(text.upper().split())
    if field == "total":
        return _CURRENCY.sub("", text).replace(",", "")
    return re.sub(r"[^A-Z0-9]", "", text) if letters else text


def sources_of(merchants: Merchants = "test", fields: Sequence[str] = tuple(QUESTIONS)) -> Sources:
    """Return all forms, with these fields of the receipts of these merchants."""
    common: dict[str, Any] = {
        "shards": True,
        "read": partial(_fields, merchants=merchants, fields=fields),
    }
    return Sources(
        "SROIE",
        Source(
            publisher="zzzDavid",
            contents="data/key/*.json and data/img/ of zzzDavid/ICDAR-2019-SROIE",
            address="https://github.com/zzzDavid/ICDAR-2019-SROIE",
            splits={"train": ("key/*.json",)},
            folders=("data/", ""),
            **common,
        ),
        Source(
            contents="the challenge's train/entities/ and train/img/",
            address="https://rrc.cvc.uab.es/?ch=13",
            splits={split: (f"{split}/entities/*.txt",) for split in ("train", "test")},
            folders=("", "SROIE2019/"),
            **common,
        ),
        Source(
            contents="the challenge's 0325updated.task2train(626p)/",
            address="https://rrc.cvc.uab.es/?ch=13",
            splits={"train": ("*task2train*/*.txt",)},
            folders=("", "SROIE2019/"),
            **common,
        ),
    )


def totals_of(merchants: Merchants = "test") -> Sources:
    """Return all forms, with the totals of these merchants' receipts."""
    return sources_of(merchants, ("total",))


def _fields(paths: Sequence[Path], merchants: Merchants, fields: Sequence[str]) -> Iterator[Record]:
    """Yield a record for each of these fields, where it is annotated."""
    for path in sorted(paths, key=lambda path: _hash(path.stem)):
        receipt = read_record(path)
        company = receipt.text("company") if receipt.has("company") else ""
        if merchants not in ("all", set_of(company)):
            continue
        for field in fields:
            if receipt.has(field) and (answer := receipt.text(field).strip()):
                yield receipt.also(
                    name=f"{path.stem}/{field}",
                    receipt=path.stem,
                    field=field,
                    answer=answer,
                    merchant=merchant(company),
                    image=str(_image_of(path)),
                )


def _image_of(path: Path) -> Path:
    """Return the scan beside a receipt's fields, or in the folder img/ beside theirs."""
    inside = path.parent.parent / "img" / f"{path.stem}.jpg"
    beside = path.with_suffix(".jpg")
    return beside if beside.exists() else inside


def merchant(company: str) -> str:
    """Return what tells a merchant: three letters of the name, because spellings differ behind them
    ("MR. D.I.Y. (M) SDN BHD", "MR D.I.Y. (KUCHAI) SDN BHD").
    """
    return re.sub(r"[^A-Z0-9]", "", company.upper()).removeprefix("MR")[:3]


def set_of(company: str) -> Merchants:
    """Return the set that a company's receipts belong to."""
    return "test" if _hash(merchant(company))[0] < 128 else "tuning"


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


@Benchmark(
    "sroie",
    lambda merchants="test", **own: sources_of(merchants),
    metric=field_right,
    longest=96,
    divisible=False,
    summary="Total, date, company and address on scanned receipts, exactly.",
)
def sroie(
    folder: Folder,
    *,
    merchants: Merchants = "test",
    compare: Literal["text", "letters"] = "text",
    image: Literal["shown", "none"] = "shown",
    brief: bool = False,
) -> Iterator[Sample]:
    """Yield the fields of each receipt, one after the other."""
    path = ""
    scan: tuple[Image.Image, ...] = ()
    for record in _records(folder, sources_of(merchants), merchants):
        if image == "shown" and record.text("image") != path:  # the fields of a receipt share it
            path, scan = record.text("image"), _scans(folder, record)
        yield Sample(
            name=record.text("name"),
            question=QUESTIONS[record.text("field")] + brief * BRIEFLY,
            answers=(record.text("answer"),),
            images=scan,
            facts={"field": record.text("field"), "compare": compare},
            labels={"field": record.text("field"), "merchant": record.text("merchant")},
        )


@Benchmark(
    "sroie_several",
    lambda merchants="test", **own: totals_of(merchants),
    metric=field_right,
    data="sroie",
    divisible=False,
    summary="Several scanned receipts in a prompt: the total of one of them, exactly.",
)
def sroie_several(
    folder: Folder,
    *,
    receipts: Literal[2, 4, 8] = 2,
    merchants: Merchants = "test",
    compare: Literal["text", "letters"] = "text",
    brief: bool = False,
) -> Iterator[Sample]:
    """Yield the total of each receipt of a group, by its company; no two are of one merchant."""
    totals = _records(folder, totals_of(merchants), merchants)
    for group in _groups([record for record in totals if record.has("company")], receipts):
        scans = _scans(folder, *group)
        together = "+".join(record.text("receipt") for record in group)
        for record in group:
            yield Sample(
                name=f"{together}/{record.text('receipt')}",
                question=f"What is the total of {record.text('company')}?" + brief * BRIEFLY,
                answers=(record.text("answer"),),
                images=scans,
                facts={"field": "total", "compare": compare},
                labels={"receipts": str(receipts), "merchant": record.text("merchant")},
            )


def _records(folder: Folder, sources: Sources, merchants: Merchants) -> Iterator[Record]:
    """Yield the fields of receipts; raise InvalidInput if there is none of these merchants."""
    is_empty = True
    for record, _ in sources.rows(folder):
        is_empty = False
        yield record
    if is_empty:
        raise InvalidInput(
            f"{str(folder.path)!r} holds no receipt of merchants={merchants}. Use merchants=all."
        )


def _scans(folder: Folder, *records: Record) -> tuple[Image.Image, ...]:
    return tuple(folder.image(record, "image", "{}") for record in records)


def _groups(records: Sequence[Record], size: int) -> Iterator[list[Record]]:
    """Yield groups of records of different merchants, in their order; an incomplete one is left."""
    waiting = list(records)
    while True:
        group: dict[str, Record] = {}
        for record in waiting:
            if len(group) < size:
                group.setdefault(record.text("merchant"), record)
        if len(group) < size:
            return
        yield list(group.values())
        waiting = [record for record in waiting if record not in group.values()]
