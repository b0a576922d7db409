"""What the catalogue knows about one model family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

PAD = 0
"""Padding id of every family; never used as a text token."""

TEXT_FROM = 20
"""Ids below this are special (padding, image placeholder, image borders); text starts here."""

VOCAB = 160
"""Size of every vocabulary, special ids included."""

IMAGE = 3
"""Image placeholder id of every family but Mllama (where upstream puts it past the vocabulary)."""

VIDEO = 4
"""Video placeholder id, for families whose configuration asks for one; never in a prompt."""

BEFORE_IMAGE = 5
"""Id that opens an image (vision start, begin of image, ...) where the family has one."""

AFTER_IMAGE = 6
"""Id that closes an image (vision end, end of image, ...) where the family has one."""

Picture = dict[str, Tensor]
"""One image: the vision keyword arguments of the model for it, without a batch dimension."""


@dataclass(frozen=True)
class Vision:
    """How a family takes its images.

    Attributes:
        sample: Draws the pixels of the ``index``-th image from a generator.
        tokens: Number of placeholder tokens that stand for an image.
        layout: How images are put into a batch: ``flat`` stacks all images of all rows,
            ``patches`` concatenates their patches, ``rows`` keeps ``[batch, images, ...]``.
        before: Ids put in front of the placeholders of an image.
        after: Ids put behind them.
        types: Keyword under which the model takes its token types (image = 1), if it does.
        prefix: Whether token types mark the answer (PaliGemma) and not the images.
        leading: Whether a conversation opens with its first image (Mllama: a token in front of
            all images sees every image of the conversation, later ones included, so that a second
            turn with an image would change what the cache holds).
        image_id: The placeholder id.
    """

    sample: Callable[[int, torch.Generator], Picture]
    tokens: Callable[[Picture], int]
    layout: Literal["flat", "patches", "rows"] = "flat"
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    types: Literal["mm_token_type_ids", "token_type_ids"] | None = None
    prefix: bool = False
    leading: bool = False
    image_id: int = IMAGE


@dataclass(frozen=True)
class Family:
    """One entry of the catalogue.

    Attributes:
        name: Name of the family, as tests write it.
        make: Builds the model with whatever weights upstream gives it.
        vision: How it takes images; ``None`` for a text family.
    """

    name: str
    make: Callable[[], PreTrainedModel]
    vision: Vision | None = None
