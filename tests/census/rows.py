"""Rows of text and media, and the batches they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Generator, Tensor

from .media import Media, Picture
from .sizes import PAD, TEXT_FROM, VOCAB

Placed = Sequence[tuple[Media, Picture]]


@dataclass(frozen=True)
class Row:
    """One prompt: its ids, their types and what is shown in it."""

    ids: list[int]
    types: list[int]
    pictures: Placed


def draw(pictures: Placed, length: int, generator: Generator) -> Row:
    """Random text of ``length`` tokens in all, with ``pictures`` spread evenly in it."""
    blocks = [list(media.ids(picture)) for media, picture in pictures]
    text = length - sum(len(block) for block in blocks)
    if text <= len(pictures):
        raise ValueError(f"{length} tokens are too few for {len(pictures)} image(s)")
    words = torch.randint(TEXT_FROM, VOCAB, (text,), generator=generator).tolist()
    leading = int(bool(pictures) and pictures[0][0].leading)
    parts = len(pictures) + 1 - leading
    bounds = [0] * leading + [text * part // parts for part in range(parts + 1)]
    chunks = [words[start:end] for start, end in pairwise(bounds)]
    ids, types = list(chunks[0]), [0] * len(chunks[0])
    for (media, _), block, chunk in zip(pictures, blocks, chunks[1:], strict=True):
        ids += [*block, *chunk]
        types += [media.kinds.get(each, 0) for each in block] + [0] * len(chunk)
    return Row(ids, types, pictures)


def batch(rows: Sequence[Row], types: Sequence[str] = ()) -> dict[str, Tensor]:
    """The keyword arguments of the model for ``rows``, padded on the left."""
    length = max(len(row.ids) for row in rows)
    inputs = {
        "input_ids": _pad([row.ids for row in rows], length, PAD),
        "attention_mask": _pad([[1] * len(row.ids) for row in rows], length, 0),
    }
    for key in types:
        inputs[key] = _pad([row.types for row in rows], length, 0)
    return inputs | _collate(rows)


def _collate(rows: Sequence[Row]) -> dict[str, Tensor]:
    """Puts the images and videos of all rows together, each argument in its way."""
    gathered: dict[str, list[list[Tensor]]] = {}
    media: dict[str, Media] = {}
    for index, row in enumerate(rows):
        for each, picture in row.pictures:
            for key, value in picture.items():
                gathered.setdefault(key, [[] for _ in rows])[index].append(value)
                media[key] = each
    return {key: _together(key, values, media[key]) for key, values in gathered.items()}


def _together(key: str, values: Sequence[Sequence[Tensor]], media: Media) -> Tensor:
    if media.by_row:
        return torch.stack([torch.stack(list(row)) for row in values])
    flat = [value for row in values for value in row]
    return torch.cat(flat) if key in media.joined else torch.stack(flat)


def _pad(rows: Sequence[Sequence[int]], length: int, value: int) -> Tensor:
    return torch.tensor([[value] * (length - len(row)) + list(row) for row in rows])
