"""A tiny model with what it takes to ask it something."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .media import Media
from .rows import batch, draw

Inputs = dict[str, Tensor]
"""Keyword arguments of ``generate``."""

_BY_TOKEN = ("mm_token_type_ids", "token_type_ids")
_KEPT = ("input_ids", "attention_mask", *_BY_TOKEN, "cross_attention_mask")


class NotBuilt(Exception):
    """A type of which no tiny model can be built or run, with the reason in one sentence."""


@dataclass(frozen=True)
class Entry:
    """What the census knows about a type beyond its defaults.

    Attributes:
        overrides: Settings that win over the generic sizes, nested like the configuration.
        start: Settings of the big configuration from which the shrinking starts.
        image: How it takes images; ``None`` where it takes none.
        video: How it takes videos.
        images: The most images of a row.
        extend: Adds arguments that depend on the whole batch.
        always: Whether a prompt must have an image.
        single: Whether a stock cache cannot continue a conversation with an image.
        tower: Makes a stand-in for a vision tower that needs a package which is not there.
        reason: Why no tiny one is built.
        prepare: Changes the built model, such as sizes fixed in its code.
    """

    overrides: Mapping[str, Any] = field(default_factory=dict)
    start: Mapping[str, Any] = field(default_factory=dict)
    image: Media | None = None
    video: Media | None = None
    images: int = 2
    extend: Callable[[Inputs], Inputs] | None = None
    always: bool = False
    single: bool = False
    tower: Callable[[Any], Any] | None = None
    reason: str | None = None
    prepare: Callable[[Any], None] | None = None


@dataclass(frozen=True)
class Specimen:
    """A tiny model and its inputs.

    Attributes:
        name: The model type.
        model: The model: random reproducible weights, float32, in evaluation mode.
        entry: What is known about the type.
    """

    name: str
    model: Any
    entry: Entry

    @property
    def takes_images(self) -> int:
        """The most images of a row: 0, 1, or 2 with text between (which stands for several)."""
        return 0 if self.entry.image is None else self.entry.images

    @property
    def takes_video(self) -> bool:
        """Whether a row can have a video."""
        return self.entry.video is not None

    @property
    def needs_image(self) -> bool:
        """Whether it can only be asked about an image."""
        return self.entry.always

    def prompt(
        self, lengths: Sequence[int], images: int = 0, video: bool = False, seed: int = 0
    ) -> Inputs:
        """Draws a batch of prompts, padded on the left.

        Args:
            lengths: Number of real tokens of each row, placeholders included.
            images: Images in each row, spread over its text.
            video: Whether each row has a video, behind its images.
            seed: Seed of text and pixels.

        Raises:
            ValueError: If the type does not take such a prompt or a row is too short for it.
        """
        media = self._media(images, video)
        rows = []
        for index, length in enumerate(lengths):
            generator = torch.Generator().manual_seed(1000 * seed + index)
            pictures = [(each, each.sample(index + number, generator)) for number, each in media]
            rows.append(draw(pictures, length, generator))
        inputs = batch(rows, self._types())
        return self.entry.extend(inputs) if self.entry.extend is not None else inputs

    def second_turn(self, inputs: Inputs, answer_ids: Tensor, new_text: int) -> Inputs | None:
        """The inputs of a text-only turn on a cache that holds the first one.

        Args:
            inputs: What `prompt` gave.
            answer_ids: The answer to it, ``[rows, any]``.
            new_text: Number of new text tokens in each row.
        """
        if self.entry.always or self.entry.single or self.model.config.is_encoder_decoder:
            return None
        full = self.whole(inputs, answer_ids, new_text)
        cached = {key: full[key] for key in _KEPT if key in full}
        if not self._has_own_positions():
            return cached
        arguments = {key: value for key, value in full.items() if key != "input_ids"}
        prepare = self.model._prepare_position_ids_for_generation
        return cached | {"position_ids": prepare(full["input_ids"], arguments)}

    def whole(self, inputs: Inputs, answer_ids: Tensor, new_text: int) -> Inputs:
        """The conversation of `second_turn` to be computed from nothing, pixels included."""
        rows = answer_ids.shape[0]
        generator = torch.Generator().manual_seed(777)
        words = torch.randint(20, 160, (rows, new_text), generator=generator)
        added = torch.cat([answer_ids, words], dim=1)
        full = dict(inputs)
        kind = 0 if self.entry.image is None else self.entry.image.answer
        full["input_ids"] = torch.cat([inputs["input_ids"], added], dim=1)
        full["attention_mask"] = torch.cat(
            [inputs["attention_mask"], torch.ones_like(added)], dim=1
        )
        for key in _BY_TOKEN:
            if key in inputs:
                full[key] = torch.cat([inputs[key], torch.full_like(added, kind)], dim=1)
        return self.entry.extend(full) if self.entry.extend is not None else full

    def _has_own_positions(self) -> bool:
        own = getattr(type(self.model), "_prepare_position_ids_for_generation", None)
        return own is not None and "generation" not in own.__module__

    def _types(self) -> tuple[str, ...]:
        media = self.entry.image or self.entry.video
        return () if media is None else media.types

    def _media(self, images: int, video: bool) -> list[tuple[int, Media]]:
        if (
            images > self.takes_images
            or (video and not self.takes_video)
            or (self.needs_image and not images and not video)
        ):
            raise ValueError(f"{self.name} takes no such prompt")
        chosen = [self.entry.image] * images + [self.entry.video] * int(video)
        return [(number, each) for number, each in enumerate(chosen) if each is not None]
