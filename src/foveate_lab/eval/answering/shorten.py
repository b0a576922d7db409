"""Prompts that are longer than they may be: images count as the tokens that they become."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from PIL import Image

from foveate.prompts.sample import PLACE


class ShortenedText(NamedTuple):
    """A text with places for its images, and the images."""

    text: str
    images: tuple[Image.Image, ...]


class _Item(NamedTuple):
    """A token of the text, or an image."""

    token: int
    image: Image.Image | None
    cost: int


def without_middle(
    tokenizer: Any, text: str, images: Sequence[Image.Image], costs: Sequence[int], most: int
) -> ShortenedText:
    """Text and images without their middle where they are more than so many tokens (LongBench).

    As many tokens are kept on either side as fit into half of ``most``; an image is kept whole or
    not at all.

    Args:
        tokenizer: the model's.
        text: without places, all images stand before it.
        images: of the text.
        costs: tokens of each image.
        most: tokens of text and images together.
    """
    placed = text if PLACE in text else PLACE * len(images) + text
    items = _items(tokenizer, placed, images, costs)
    if sum(item.cost for item in items) <= most:
        return ShortenedText(text, tuple(images))
    half = most // 2
    head = _fitting(items, half)
    tail = _fitting(items[head:][::-1], half)
    kept = items[:head], items[len(items) - tail :]
    shown = [item.image for part in kept for item in part if item.image is not None]
    return ShortenedText("".join(_text(tokenizer, part) for part in kept), tuple(shown))


def _items(
    tokenizer: Any, text: str, images: Sequence[Image.Image], costs: Sequence[int]
) -> list[_Item]:
    pieces, items = text.split(PLACE), list[_Item]()
    for place, piece in enumerate(pieces):
        ids = tokenizer(piece, add_special_tokens=False)["input_ids"] if piece else []
        items += [_Item(token, None, 1) for token in ids]
        if place < len(images):
            items.append(_Item(0, images[place], costs[place]))
    return items


def _fitting(items: Sequence[_Item], most: int) -> int:
    """How many of the first items have no more tokens than that."""
    total = 0
    for count, item in enumerate(items):
        total += item.cost
        if total > most:
            return count
    return len(items)


def _text(tokenizer: Any, items: Sequence[_Item]) -> str:
    """The text of these items, with places for images."""
    runs: list[list[int]] = [[]]
    for item in items:
        if item.image is None:
            runs[-1].append(item.token)
        else:
            runs.append([])
    return PLACE.join(
        tokenizer.decode(run, skip_special_tokens=True) if run else "" for run in runs
    )
