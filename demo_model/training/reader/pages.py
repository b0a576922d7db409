"""Pages for training: the visual tokens of drawn documents, with questions about them."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from foveate_reader.detection import Line, find_lines, rows_of
from foveate_reader.eye import Eye
from training.reader.documents import any_document
from training.reader.paper import Fonts, Item
from training.reader.parts import ASKED

DETECTED = 0.2  # share of pages whose lines the detector finds


class Page(NamedTuple):
    """Visual tokens of a document in float16, all and the short form, and its questions."""

    columns: Tensor
    short: Tensor
    questions: list[tuple[str, str]]


@torch.inference_mode()
def page(r: Random, eye: Eye, fonts: Fonts, lines: int) -> Page:
    """Draw a document of about so many lines, and look at it.

    The detector finds the lines of some pages. Those of others are the drawn ones, in boxes as
    uncertain as the detector's, which takes half the time.
    """
    document = any_document(r, fonts, lines)
    if r.random() < DETECTED:
        rows = find_lines(eye.detector, document.image)
    else:
        rows = rows_of(_lines(r, document.items, document.image))
    columns = eye.read(document.image, rows)
    questions = [(q, a) for q, a in document.questions if a and a.isascii()]
    return Page(columns.half(), eye.shortened(columns).half(), questions)


def together(pages: list[Page]) -> list[tuple[str, str]]:
    """Return questions about fields of several pages, each named by its company."""
    fields = [_fields(page) for page in pages]
    companies = [known.get("company") for known in fields]
    return [
        (f"What is the {name} of {company}?", known[name])
        for company, known in zip(companies, fields, strict=True)
        for name in ("total", "date", "address", "time")
        if company and companies.count(company) == 1 and name in known
    ]


def _fields(page: Page) -> dict[str, str]:
    """Return the answers of questions about fields that every document may have."""
    return {name: a for q, a in page.questions for name, ways in ASKED.items() if q in ways}


def _lines(r: Random, items: list[Item], image: Image.Image) -> list[Line]:
    """Return boxes around the items, some of them around two neighbours."""
    boxes: list[Line] = []
    for left, top, right, bottom in (item.box for item in items):
        high = max(bottom - top, 8)
        x, y = r.uniform(0.05, 0.4) * high, r.uniform(0.1, 0.35) * high
        box = Line(
            max(0, left - x), max(0, top - y), min(image.width, right + x),
            min(image.height, bottom + y),
        )  # fmt: skip
        beside = boxes and abs(boxes[-1].top - box.top) < 0.4 * high
        if beside and 0 < box.left - boxes[-1].right < 0.7 * high and r.random() < 0.7:
            before = boxes.pop()
            box = Line(
                before.left, min(before.top, box.top), box.right, max(before.bottom, box.bottom)
            )
        if box.right - box.left > 2 and box.bottom - box.top > 4:
            boxes.append(box)
    return boxes
