"""Conversations row by row, and the batches they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

import torch
from torch import Generator, Tensor

from .family import PAD, TEXT_FROM, VOCAB, Picture, Vision
from .images import collate, split


@dataclass(frozen=True)
class Row:
    """One conversation so far.

    Attributes:
        ids: Its token ids, without padding.
        types: Token types, one per id (used only by families that take them).
        pictures: Its images, in the order of their placeholders.
    """

    ids: tuple[int, ...] = ()
    types: tuple[int, ...] = ()
    pictures: tuple[Picture, ...] = ()

    def text(self, ids: Sequence[int], vision: Vision | None) -> Row:
        """The row with text behind it; behind PaliGemma's prompt it counts as answer."""
        kind = int(vision is not None and vision.prefix and bool(self.ids))
        types = (*self.types, *[kind] * len(ids))
        return replace(self, ids=(*self.ids, *ids), types=types)


def draw(
    row: Row, vision: Vision | None, pictures: Sequence[Picture], text: int, generator: Generator
) -> Row:
    """Puts ``text`` random tokens behind ``row``, with ``pictures`` spread evenly among them."""
    if text <= len(pictures):
        raise ValueError(f"{text} text tokens are too few around {len(pictures)} image(s)")
    first = not row.ids
    words = torch.randint(TEXT_FROM, VOCAB, (text,), generator=generator).tolist()
    leading = int(first and vision is not None and vision.leading and bool(pictures))
    parts = len(pictures) + 1 - leading
    bounds = [0] * leading + [text * part // parts for part in range(parts + 1)]
    chunks = [words[start:end] for start, end in pairwise(bounds)]
    ids: list[int] = list(chunks[0])
    types: list[int] = [0] * len(ids)
    for picture, chunk in zip(pictures, chunks[1:], strict=True):
        assert vision is not None
        block = [*vision.before, *[vision.image_id] * vision.tokens(picture), *vision.after]
        ids += [*block, *chunk]
        types += [int(each == vision.image_id) for each in block] + [0] * len(chunk)
    if vision is not None and vision.prefix:
        types = [0 if first else 1] * len(ids)
    return Row(
        ids=(*row.ids, *ids),
        types=(*row.types, *types),
        pictures=(*row.pictures, *pictures),
    )


def batch(rows: Sequence[Row], vision: Vision | None) -> dict[str, Tensor]:
    """The keyword arguments of the model for ``rows``, padded on the left."""
    length = max(len(row.ids) for row in rows)
    inputs = {
        "input_ids": _pad([row.ids for row in rows], length, PAD),
        "attention_mask": _pad([[1] * len(row.ids) for row in rows], length, 0),
    }
    if vision is None:
        return inputs
    if vision.types is not None:
        inputs[vision.types] = _pad([row.types for row in rows], length, 0)
    inputs |= collate([row.pictures for row in rows], vision.layout)
    if "aspect_ratio_mask" in inputs:
        inputs["cross_attention_mask"] = _cross_mask(inputs, vision)
    return inputs


def unbatch(inputs: dict[str, Tensor], vision: Vision | None) -> list[Row]:
    """Undoes `batch`."""
    real = [mask.bool() for mask in inputs["attention_mask"]]
    ids = [_tuple(row[keep]) for row, keep in zip(inputs["input_ids"], real, strict=True)]
    if vision is None:
        return [Row(row, (0,) * len(row)) for row in ids]
    types = [(0,) * len(row) for row in ids]
    if vision.types is not None:
        types = [_tuple(row[keep]) for row, keep in zip(inputs[vision.types], real, strict=True)]
    counts = [sum(key == vision.image_id for key, _ in groupby(row)) for row in ids]
    pictures = split(inputs, counts, vision.layout)
    return [Row(*each[:2], tuple(each[2])) for each in zip(ids, types, pictures, strict=True)]


def _cross_mask(inputs: dict[str, Tensor], vision: Vision) -> Tensor:
    """Each image is seen from its placeholder up to the next one (``MllamaProcessor``)."""
    ids, present = inputs["input_ids"], inputs["aspect_ratio_mask"]
    seen = (ids == vision.image_id).cumsum(-1)
    number = torch.arange(1, present.shape[1] + 1)
    return (seen[..., None] == number)[..., None].long() * present[:, None]


def _pad(rows: Sequence[Sequence[int]], length: int, value: int) -> Tensor:
    return torch.tensor([[value] * (length - len(row)) + list(row) for row in rows])


def _tuple(values: Tensor) -> tuple[int, ...]:
    return tuple(values.tolist())
