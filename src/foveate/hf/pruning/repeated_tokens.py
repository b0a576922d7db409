"""Visual tokens whose pixels a prune stage calls repeated, for encoders that read all patches.

Pixels are compared as the patch embedding reads them. The tokens are dropped in the decoder's
inputs; the encoder has computed them by then.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from foveate.errors import UnsupportedModel
from foveate.hf.layer.hooks import wrap
from foveate.hf.model.decoder import DecoderPath
from foveate.hf.pruning.encoder_cut import EncoderCut, cells_of_images, leaves_out
from foveate.hf.pruning.patch_tokens import PatchTokens
from foveate.hf.pruning.tower import rows_of_images, unlike_the_pass
from foveate.policies.pruning import PixelPrune
from foveate.policies.spec import print_value

_ALL = 0.99
"""Least mean over a token's patches, of 1 where they are repeated, for the token to be repeated."""


def repeats_of(
    model: PreTrainedModel, path: DecoderPath, stage: PixelPrune
) -> EncoderCut | RepeatedTokens:
    """Return the comparison of pixels: before this model's encoder if it can leave patches out.

    Raises:
        UnsupportedModel: how this model's patches become tokens is unknown.
    """
    if leaves_out(model):
        return EncoderCut(model, path, stage)
    return RepeatedTokens(model, path, stage)


class RepeatedTokens:
    """Comparison of pixels beside an encoder that reads them all. The interface is that of
    :class:`foveate.hf.pruning.encoder_cut.EncoderCut`; nothing ever ``waits``.
    """

    def __init__(self, model: PreTrainedModel, path: DecoderPath, stage: PixelPrune):
        self.stage, self.waits, self._active = stage, False, False
        self.tokens, self._embedding = PatchTokens(model), _patch_embedding(model, path)
        self._values: list[Float[Tensor, "n p 1"]] = []
        if self.tokens.unknown or self._embedding is None:
            raise self._refused(self.tokens.unknown or "this model's patch embedding was not found")

    def _refused(self, why: str) -> UnsupportedModel:
        return UnsupportedModel(
            f"{print_value(self.stage)} compares the pixels of visual tokens, and {why}. Use "
            "another prune stage, such as divprune.prune(keep=50%)."
        )

    def follow(self, undo: ExitStack) -> None:
        """Observe the patch embedding, until ``undo`` is closed."""
        undo.callback(self._values.clear)
        self.tokens.follow(undo, None)
        wrap(undo, self._embedding, "forward", self._embed)  # type: ignore[arg-type]

    def begin(self) -> None:
        """Begin a call from outside; forget the images of earlier ones."""
        self._values.clear()
        self.tokens.forget()

    def start(self, active: bool) -> None:
        """Compare pixels from now on if ``active``, until the decoder is called."""
        self._active = active

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def _embed(self, forward: Callable[[Tensor], Tensor], pixels: Tensor) -> Tensor:
        if self._active:
            patch, cell = self._embedding.kernel_size[0], math.isqrt(self.tokens.each)  # type: ignore[union-attr]
            grids = cells_of_images(pixels, None, patch * cell)
            marks = torch.stack([self.stage.repeated(grid) for grid in grids])
            marks = marks.repeat_interleave(cell, 1).repeat_interleave(cell, 2)
            self._values.append(marks.flatten(1)[..., None].float())
        return forward(pixels)

    def take(
        self, hidden: Float[Tensor, "b t c"], vision: Bool[Tensor, "b t"]
    ) -> tuple[Float[Tensor, "b t c"], Bool[Tensor, "b t"]]:
        """Return the decoder's inputs, and the repeated tokens among them.

        Raises:
            UnsupportedModel: the encoder has read other images, or none.
        """
        joined, _ = self.tokens.joined(self._values)
        rows = rows_of_images(vision, len(joined))
        if rows is None:
            raise self._refused(unlike_the_pass(len(joined), vision))
        return hidden, rows.scatter(joined[:, 0]) > _ALL

    def check(self, needed: Bool[Tensor, "b t"]) -> None:
        """Accept any repeated tokens that are ``needed``: all were encoded."""


def _patch_embedding(model: PreTrainedModel, path: DecoderPath) -> nn.Conv2d | None:
    """Find the convolution that embeds patches; None if there is none."""
    own = {id(part) for part in path.decoder.modules()}
    side = getattr(getattr(model.config, "vision_config", None), "patch_size", None)
    size = tuple(side) if isinstance(side, (list, tuple)) else (side, side)
    return next(
        (
            part
            for part in model.modules()
            if isinstance(part, nn.Conv2d) and part.kernel_size == part.stride == size
            if id(part) not in own
        ),
        None,
    )
