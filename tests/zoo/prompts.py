"""Prompts of the catalogue's families, and how a conversation goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .catalogue import build, family
from .family import Family
from .rows import Row, batch, draw, unbatch

Inputs = dict[str, Tensor]
"""Keyword arguments of a model and of its ``generate``."""


class Turn(NamedTuple):
    """The inputs of a later turn of a conversation.

    Attributes:
        full: The whole conversation, to be computed from nothing.
        cached: What ``generate(**cached, past_key_values=cache)`` needs when ``cache`` holds the
            conversation up to here: all ids and masks, but only the new images.
    """

    full: Inputs
    cached: Inputs


def prompt(
    name: str, *, lengths: Sequence[int] = (40,), images: int | None = None, seed: int = 0
) -> Inputs:
    """Draws a batch of prompts, padded on the left.

    Row ``i`` depends on its length, ``images``, ``seed`` and ``i`` only. Where the family allows
    it, images of different rows and different images of a row have different sizes.

    Args:
        name: A family of the catalogue.
        lengths: Number of real tokens of each row, image tokens included.
        images: Images in each row, spread over its text; one by default, none for text families.
        seed: Seed of text and pixels.

    Raises:
        ValueError: If a row is too short for its images, or a text family is asked for images.
    """
    entry = family(name)
    count = _count(entry, images)
    rows = []
    for index, length in enumerate(lengths):
        generator = torch.Generator().manual_seed(1000 * seed + index)
        pictures = _pictures(entry, range(index, index + count), generator)
        text = length - _placeholders(entry, pictures)
        rows.append(draw(Row(), entry.vision, pictures, text, generator))
    return batch(rows, entry.vision)


def row(name: str, inputs: Inputs, index: int) -> Inputs:
    """One row of a batch alone, without its padding."""
    vision = family(name).vision
    return batch([unbatch(inputs, vision)[index]], vision)


def append(name: str, inputs: Inputs, tokens: Tensor) -> Inputs:
    """The inputs with text behind every row, such as what ``generate`` answered.

    Args:
        name: A family of the catalogue.
        inputs: What `prompt` or `extend` made.
        tokens: Text ids, of shape ``[rows, any]``.
    """
    vision = family(name).vision
    rows = unbatch(inputs, vision)
    longer = [each.text(new.tolist(), vision) for each, new in zip(rows, tokens, strict=True)]
    return batch(longer, vision)


def extend(
    name: str, inputs: Inputs, *, new_text: int, images: int = 0, seed: int | None = None
) -> Turn:
    """Adds a turn to a conversation.

    Args:
        name: A family of the catalogue.
        inputs: The conversation up to here, complete; a cache that is to be used with the result
            holds exactly these tokens, or all but the last few.
        new_text: Text tokens added to each row.
        images: Images added to each row, spread over the new text. Their sizes differ, but are the
            same in every row, so that no padding falls into the middle of a conversation.
        seed: Seed of the new text and pixels; something new by default.
    """
    entry = family(name)
    base = 777 if seed is None else seed
    old = unbatch(inputs, entry.vision)
    new = []
    for index, each in enumerate(old):
        generator = torch.Generator().manual_seed(1000 * base + 500 + index)
        pictures = _pictures(entry, range(1, images + 1), generator)
        new.append(draw(each, entry.vision, pictures, new_text, generator))
    full = batch(new, entry.vision)
    return Turn(full, _on_cache(entry, full, old, new))


def _on_cache(entry: Family, full: Inputs, old: Sequence[Row], new: Sequence[Row]) -> Inputs:
    """Replaces all images by the new ones, and adds what the model cannot know without the old."""
    if entry.vision is None:
        return full
    added = [
        Row(after.ids, after.types, after.pictures[len(before.pictures) :])
        for before, after in zip(old, new, strict=True)
    ]
    cached = batch(added, entry.vision)
    if "cross_attention_mask" in full:
        cached["cross_attention_mask"] = full["cross_attention_mask"]
    if entry.vision.types == "mm_token_type_ids":
        cached["position_ids"] = _mrope_positions(entry, full)
    return cached


def _mrope_positions(entry: Family, full: Inputs) -> Tensor:
    """Text positions over time, height and width ones, as ``generate`` makes them.

    With a cache ``generate`` cannot: it has the grids of the new images only, or, without new
    images, an offset left over from whatever ran last.
    """
    mask = full["attention_mask"]
    text = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 0)
    positions, _ = build(entry.name).model.get_rope_index(
        full["input_ids"],
        mm_token_type_ids=full["mm_token_type_ids"],
        image_grid_thw=full.get("image_grid_thw"),
        attention_mask=mask,
    )
    return torch.cat([text[None], positions])


def _count(entry: Family, images: int | None) -> int:
    if images is None:
        return int(entry.vision is not None)
    if images and entry.vision is None:
        raise ValueError(f"{entry.name} takes no images")
    return images


def _pictures(
    entry: Family, indices: Sequence[int], generator: torch.Generator
) -> list[dict[str, Tensor]]:
    if entry.vision is None:
        return []
    return [entry.vision.sample(index, generator) for index in indices]


def _placeholders(entry: Family, pictures: Sequence[dict[str, Tensor]]) -> int:
    if entry.vision is None:
        return 0
    around = len(entry.vision.before) + len(entry.vision.after)
    return sum(entry.vision.tokens(picture) + around for picture in pictures)
