"""Shortening of prompts, in which images count as their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from PIL import Image

from foveate.prompts.sample import PLACE


class ShortenedText(NamedTuple):
    """Text with image placeholders, and the images."""

    text: str
    images: tuple[Image.Image, ...]


class _Item(NamedTuple):
    """Token of the text, or an image."""

    token: int
    image: Image.Image | None
    cost: int


def without_middle(
    tokenizer: Any, text: str, images: Sequence[Image.Image], costs: Sequence[int], limit: int
) -> ShortenedText:
    """Drop the middle of text and images if they exceed a number of tokens (LongBench).

    Either side keeps as many tokens as fit into half of ``limit``; an image is kept entirely or not
    at all.

    Args:
        tokenizer: the model's tokenizer.
        text: text; without placeholders, all images come before it.
        images: images of the text.
        costs: tokens of each image.
        limit: maximum tokens of text and images together.
    """
    placed = text if PLACE in text else PLACE * len(images) + text
    items = _items(tokenizer, placed, images, costs)
    if sum(item.cost for item in items) <= limit:
        return ShortenedText(text, tuple(images))
    half = limit // 2
    head = _fitting(items, half)
    tail = _fitting(items[head:][::-1], half)
    kept = items[:head], items[len(items) - tail :]
    kept_images = [item.image for part in kept for item in part if item.image is not None]
    return ShortenedText("".join(_text(tokenizer, part) for part in kept), tuple(kept_images))


def _items(
    tokenizer: Any, text: str, images: Sequence[Image.Image], costs: Sequence[int]
) -> list[_Item]:
    pieces, items = text.split(PLACE), list[_Item]()
    for index, piece in enumerate(pieces):
        ids = tokenizer(piece, add_special_tokens=False)["input_ids"] if piece else []
        items += [_Item(token, None, 1) for token in ids]
        if index < len(images):
            items.append(_Item(0, images[index], costs[index]))
    return items


def _fitting(items: Sequence[_Item], limit: int) -> int:
    """Return how many of the first items fit into ``limit`` tokens."""
    total = 0
    for count, item in enumerate(items):
        total += item.cost
        if total > limit:
            return count
    return len(items)


def _text(tokenizer: Any, items: Sequence[_Item]) -> str:
    """Return the text of these items, with placeholders for images."""
    runs: list[list[int]] = [[]]
    for item in items:
        if item.image is None:
            runs[-1].append(item.token)
        else:
            runs.append([])
    return PLACE.join(
        tokenizer.decode(run, skip_special_tokens=True) if run else "" for run in runs
    )
