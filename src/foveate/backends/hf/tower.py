"""What a model's image tower pays its patches, for methods that choose visual tokens by it.

The attention of one layer is looked at as it is asked for, whichever implementation computes it:
that of the layer whose output the decoder is given (``vision_feature_layer``, or the last one). How
patches become visual tokens is known of the families listed here; others are refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from foveate.backends.hf.decoder import DecoderPath
from foveate.backends.hf.interface import lookers
from foveate.core.pruning import Prune, TowerAttention
from foveate.core.spec import print_value
from foveate.errors import UnsupportedModel

ONE_EACH = ("llava", "vipllava", "paligemma")
"""A patch is a token."""
IN_SQUARES = ("internvl", "idefics3", "smolvlm", "foveate_mobilevlm_v2")
"""A square of patches is, of a square image."""
IN_RUNS = ("qwen2_vl", "qwen3_vl", "qwen3_vl_moe")
"""Patches that follow each other are."""
_KNOWN = (*ONE_EACH, *IN_SQUARES, *IN_RUNS)
_CLASS = ("clip_vision_model", "internvl_vision")
"""Towers with a class token in front of an image's patches."""
ROWS = 512  # of attention that are worked out at a time


def reads_tower(stage: object) -> bool:
    """Whether a prune stage goes by the image tower's attention."""
    return bool(getattr(stage, "reads_tower", False))


class TowerCall(NamedTuple):
    """One call of attention in the tower: queries and keys [n, h, t, d], [n, h, t, d], its mask and
    its scale.
    """

    q: Float[Tensor, "n h t d"]
    k: Float[Tensor, "n h t d"]
    mask: Any
    scale: float

    def paid(self, by_class: bool) -> Float[Tensor, "n t"]:
        """What each patch is paid, the mean over heads: by the first one, which is the class token,
        or by all, the mean over them.
        """
        count = 1 if by_class else self.q.shape[2]
        total = self.q.new_zeros(self.q.shape[0], self.q.shape[2], dtype=torch.float32)
        for first in range(0, count, ROWS):
            some = slice(first, min(first + ROWS, count))
            logits = (self.q[:, :, some] @ self.k.mT).float() * self.scale
            total += self._masked(logits, some).softmax(-1).mean(1).sum(1)
        return total / count

    def _masked(self, logits: Tensor, some: slice) -> Tensor:
        mask = self.mask
        if not isinstance(mask, Tensor):
            return logits
        rows = mask if mask.shape[-2] == 1 else mask[..., some, :]
        if rows.dtype == torch.bool:
            return logits.masked_fill(~rows, torch.finfo(logits.dtype).min)
        return logits + rows.float()


class Tower:
    """Looks at the tower's attention while a model is in a block.

    Raises:
        UnsupportedModel: how this model's patches become tokens is not known.
    """

    def __init__(self, model: PreTrainedModel, place: DecoderPath, stage: Prune | None):
        config = model.config
        self.said, self.in_squares = print_value(stage), config.model_type in IN_SQUARES
        self.each = _patches_of_a_token(config) if config.model_type in _KNOWN else 0
        self.layers = _layers(model, place)
        if not self.each or not self.layers:
            raise self._refused(
                f"how patches become tokens is not known of this {config.model_type} (it is of "
                f"{', '.join(sorted(_KNOWN))})"
            )
        whole = getattr(config, "vision_feature_select_strategy", "default") == "full"
        self.by_class = config.vision_config.model_type in _CLASS and not whole
        self._calls: list[TowerCall] = []

    def _refused(self, why: str) -> UnsupportedModel:
        return UnsupportedModel(
            f"{self.said} goes by the attention of the image tower, and {why}. Take a way to "
            "prune that does not, such as random.prune(keep=50%)."
        )

    def follow(self, undo: ExitStack) -> None:
        """From now on it looks, until it is undone."""
        undo.callback(self._calls.clear)
        for layer in self.layers:
            undo.callback(layer.register_forward_pre_hook(self._begins).remove)
            for part in layer.modules():
                lookers[id(part)] = self._look
                undo.callback(lookers.pop, id(part), None)

    def _begins(self, layer: nn.Module, args: Any) -> None:
        self._calls.clear()  # of images that nothing was made of

    @torch.no_grad()
    def _look(self, q: Tensor, k: Tensor, mask: Any, kwargs: Mapping[str, Any]) -> None:
        scale = kwargs.get("scaling")
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        ends = kwargs.get("cu_seq_lens_q")
        lengths = [q.shape[2]] if ends is None else ends.diff().tolist()  # images one after another
        pieces = zip(torch.split(q, lengths, 2), torch.split(k, lengths, 2), strict=True)
        self._calls += [TowerCall(q.detach(), k.detach(), mask, scale) for q, k in pieces]

    def of(self, vision: Bool[Tensor, "b t"]) -> TowerAttention:
        """How it looked at the visual tokens of a pass: those marked, row by row, are those of the
        images that it has just seen. Rows that stand several times (beams) share an image.

        Raises:
            UnsupportedModel: it has seen other images, or none.
        """
        calls = list(self._calls)
        self._calls.clear()
        made = [self.patches(one) for one in calls]
        tokens, wanted = sum(map(len, made)), int(vision.sum())
        times = wanted // tokens if tokens else 0
        once = vision[:: max(1, times)]
        if times * tokens != wanted or not torch.equal(once.repeat_interleave(times, 0), vision):
            raise self._refused(
                f"it has just seen images of {tokens} visual tokens, where this pass has {wanted}: "
                "the tower has to see a pass's images, all in one call, in the call of the model"
            )
        paid = [one.paid(self.by_class).flatten()[of] for one, of in zip(calls, made, strict=True)]
        keys = [
            one.k.float().mean(1).flatten(0, 1)[of] for one, of in zip(calls, made, strict=True)
        ]
        return TowerAttention(*(_at(once, torch.cat(each).mean(1), times) for each in (paid, keys)))

    def patches(self, call: TowerCall) -> Int[Tensor, "v p"]:
        """Which patches, of all images of a call one after another, each token is made of; those of
        no token are none.
        """
        n, t = call.q.shape[0], call.q.shape[2]
        place = torch.arange(n * t, device=call.q.device).view(n, t)[:, int(self.by_class) :]
        side, cell = math.isqrt(place.shape[1]), math.isqrt(self.each)
        if place.shape[1] % self.each or (
            self.in_squares and (side**2 != place.shape[1] or side % cell)
        ):
            return place.new_zeros(0, self.each)
        if self.in_squares:
            place = place.view(n, side // cell, cell, side // cell, cell).transpose(2, 3)
        return place.reshape(-1, self.each)


def _at(vision: Bool[Tensor, "b t"], values: Tensor, times: int) -> Tensor:
    """The values at the tokens marked, zeros elsewhere; every row so many times."""
    values = values.to(vision.device)
    placed = values.new_zeros(*vision.shape, *values.shape[1:])
    placed[vision] = values
    return placed.repeat_interleave(times, 0)


def _patches_of_a_token(config: Any) -> int:
    """How many they are, by the configuration; 0 where that says nothing that is known."""
    vision, kind = config.vision_config, config.model_type
    if kind in ONE_EACH:
        return 1
    if kind in IN_RUNS:
        return int(vision.spatial_merge_size) ** 2
    if kind == "internvl":
        return int(round(1 / config.downsample_ratio) ** 2)
    if hasattr(config, "scale_factor"):
        return int(config.scale_factor) ** 2
    side = vision.image_size // vision.patch_size
    return 0 if side % config.projector_grid else (side // config.projector_grid) ** 2


def _layers(model: PreTrainedModel, place: DecoderPath) -> list[nn.Module]:
    """The layers of that index, of all lists of modules outside the decoder that have as many as
    the tower has layers; attention is asked for in one of them.
    """
    vision = getattr(model.config, "vision_config", None)
    depth = getattr(vision, "num_hidden_layers", None) or getattr(vision, "depth", 0)
    own = {id(part) for part in place.decoder.modules()}
    stacks = [part for part in model.modules() if isinstance(part, nn.ModuleList)]
    index = _index(getattr(model.config, "vision_feature_layer", -1))
    stacks = [part for part in stacks if len(part) == depth and id(part) not in own]
    return [part[index] for part in stacks if depth and _attends(part[index])]


def _attends(layer: nn.Module) -> bool:
    """Whether a layer has attention: a tower may have as many of others, which merge patches."""
    return any("attn" in name or "attention" in name for name, _ in layer.named_modules())


def _index(chosen: Any) -> int:
    """Of the layer whose output is the hidden state of that number (the first is the input)."""
    number = chosen[-1] if isinstance(chosen, (list, tuple)) else chosen
    return int(number) if number < 0 else max(0, int(number) - 1)
