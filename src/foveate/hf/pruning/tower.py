"""Attention of a model's image tower to its patches, for methods that select visual tokens by it.

The attention of one layer is observed when it is called, under any implementation: the layer whose
output the decoder receives (``vision_feature_layer``, or the last one).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
from transformers import PreTrainedModel

from foveate.errors import UnsupportedModel
from foveate.hf.layer.interface import lookers
from foveate.hf.model.decoder import DecoderPath
from foveate.hf.pruning.patch_tokens import PatchTokens
from foveate.policies.pruning import Prune, TowerAttention
from foveate.policies.spec import print_value

_CLASS = ("clip_vision_model", "internvl_vision")
"""Model types of towers with a class token before an image's patches."""
ROWS = 512  # queries whose attention is computed at a time


def reads_tower(stage: object) -> bool:
    """Return True if a prune stage uses the image tower's attention."""
    return bool(getattr(stage, "reads_tower", False))


class TowerCall(NamedTuple):
    """One call of attention in the tower: queries and keys [n, h, t, d], its mask and its scale."""

    q: Float[Tensor, "n h t d"]
    k: Float[Tensor, "n h t d"]
    mask: Any
    scale: float

    def received(self, by_class: bool) -> Float[Tensor, "n t"]:
        """Return the attention that each patch receives, averaged over heads: from the first token,
        which is the class token, or averaged over all patches.
        """
        count = 1 if by_class else self.q.shape[2]
        total = self.q.new_zeros(self.q.shape[0], self.q.shape[2], dtype=torch.float32)
        for first in range(0, count, ROWS):
            span = slice(first, min(first + ROWS, count))
            logits = (self.q[:, :, span] @ self.k.mT).float() * self.scale
            total += self._masked(logits, span).softmax(-1).mean(1).sum(1)
        return total / count

    def _masked(self, logits: Tensor, span: slice) -> Tensor:
        mask = self.mask
        if not isinstance(mask, Tensor):
            return logits
        rows = mask if mask.shape[-2] == 1 else mask[..., span, :]
        if rows.dtype == torch.bool:
            return logits.masked_fill(~rows, torch.finfo(logits.dtype).min)
        return logits + rows.float()


class Tower:
    """Observer of the tower's attention while a model is in a context.

    Raises:
        UnsupportedModel: the conversion of this model's patches to tokens is unknown.
    """

    def __init__(self, model: PreTrainedModel, path: DecoderPath, stage: Prune | None):
        config = model.config
        self.spec, self.tokens = print_value(stage), PatchTokens(model)
        stacks = encoder_stacks(model, path)
        index = _index(getattr(config, "vision_feature_layer", -1))
        self.layers = [stack[index] for _, stack in stacks]
        self.module = stacks[0][0] if stacks else None
        if self.tokens.unknown or not self.layers:
            raise self._refused(self.tokens.unknown or "this model's tower layers were not found")
        is_full = getattr(config, "vision_feature_select_strategy", "default") == "full"
        self.by_class = config.vision_config.model_type in _CLASS and not is_full
        self._calls: list[TowerCall] = []

    def _refused(self, why: str) -> UnsupportedModel:
        return UnsupportedModel(
            f"{self.spec} uses the attention of the image tower, and {why}. Use another prune "
            "stage, such as random.prune(keep=50%)."
        )

    def follow(self, undo: ExitStack) -> None:
        """Observe the tower's attention, until ``undo`` is closed."""
        undo.callback(self._calls.clear)
        self.tokens.follow(undo, self.module)
        for layer in self.layers:
            undo.callback(layer.register_forward_pre_hook(self._begin_image).remove)
            for part in layer.modules():
                lookers[id(part)] = self._look
                undo.callback(lookers.pop, id(part), None)

    def _begin_image(self, layer: nn.Module, args: Any) -> None:
        self._calls.clear()  # of images whose tokens were never read
        self.tokens.forget()

    @torch.no_grad()
    def _look(self, q: Tensor, k: Tensor, mask: Any, kwargs: Mapping[str, Any]) -> None:
        scale = kwargs.get("scaling")
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        ends = kwargs.get("cu_seq_lens_q")
        lengths = [q.shape[2]] if ends is None else ends.diff().tolist()  # images one after another
        pieces = zip(torch.split(q, lengths, 2), torch.split(k, lengths, 2), strict=True)
        self._calls += [TowerCall(q.detach(), k.detach(), mask, scale) for q, k in pieces]

    def of(self, vision: Bool[Tensor, "b t"]) -> TowerAttention:
        """Return the tower's attention to the visual tokens of a pass. ``vision`` marks them, row
        by row; they are those of the images that the tower has just read. Repeated rows (beams)
        share an image.

        Raises:
            UnsupportedModel: it has read other images, or none.
        """
        calls = list(self._calls)
        self._calls.clear()
        joined, of_patches = self.tokens.joined([self._values_of(call) for call in calls])
        rows = rows_of_images(vision, len(joined))
        if rows is None:
            raise self._refused(unlike_the_pass(len(joined), vision))
        received = joined[:, 0].masked_fill(~of_patches, -torch.inf)
        return TowerAttention(*(rows.scatter(values) for values in (received, joined[:, 1:])))

    def _values_of(self, call: TowerCall) -> Float[Tensor, "n p c"]:
        """Return, for each patch of a call, the received attention, then the mean of its keys over
        heads.
        """
        keys = call.k.float().mean(1)
        values = torch.cat([call.received(self.by_class)[..., None], keys], -1)
        return values[:, int(self.by_class) :]


class ImageRows(NamedTuple):
    """Rows of a pass with the images that the tower has just read. ``once`` marks the visual tokens
    of the rows, of which each is repeated ``times`` times (beams share an image).
    """

    once: Bool[Tensor, "r t"]
    times: int

    def scatter(self, values: Shaped[Tensor, "v *c"]) -> Shaped[Tensor, "b t *c"]:
        """Put the values at the visual tokens of all rows, and zeros elsewhere."""
        values = values.to(self.once.device)
        result = values.new_zeros(*self.once.shape, *values.shape[1:])
        result[self.once] = values
        return result.repeat_interleave(self.times, 0)


def rows_of_images(vision: Bool[Tensor, "b t"], tokens: int) -> ImageRows | None:
    """Return the rows of a pass whose images have ``tokens`` tokens; None if they do not fit."""
    marked = int(vision.sum())
    times = marked // tokens if tokens else 0
    once = vision[:: max(1, times)]
    if times * tokens != marked or not torch.equal(once.repeat_interleave(times, 0), vision):
        return None
    return ImageRows(once, times)


def unlike_the_pass(tokens: int, vision: Bool[Tensor, "b t"]) -> str:
    """Return the reason why the images that a tower has read are not those of a pass."""
    return (
        f"the tower has just read images of {tokens} visual tokens, and this pass has "
        f"{int(vision.sum())}: pass all images of a prompt in one call of the model; with models "
        "that pack tiles, images only and no videos, whose frames they pool"
    )


def encoder_stacks(
    model: PreTrainedModel, path: DecoderPath
) -> list[tuple[nn.Module, nn.ModuleList]]:
    """Find the module lists outside the decoder that have as many items as the tower has layers,
    and attention in these; return each with its parent module.
    """
    vision = getattr(model.config, "vision_config", None)
    depth = getattr(vision, "num_hidden_layers", None) or getattr(vision, "depth", 0)
    own = {id(part) for part in path.decoder.modules()}
    return [
        (owner, part)
        for owner in model.modules()
        for part in owner.children()
        if isinstance(part, nn.ModuleList) and id(part) not in own
        if depth and len(part) == depth and _attends(part[-1])
    ]


def _attends(layer: nn.Module) -> bool:
    """Return True if a layer has attention: a tower may have as many other layers, which merge
    patches.
    """
    return any("attn" in name or "attention" in name for name, _ in layer.named_modules())


def _index(chosen: Any) -> int:
    """Return the index of the layer whose output is that hidden state (the first hidden state is
    the input).
    """
    number = chosen[-1] if isinstance(chosen, (list, tuple)) else chosen
    return int(number) if number < 0 else max(0, int(number) - 1)
