"""What a model's image tower pays its patches, for methods that choose visual tokens by it.

The attention of one layer is looked at as it is asked for, whichever implementation computes it:
that of the layer whose output the decoder is given (``vision_feature_layer``, or the last one).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from foveate.errors import UnsupportedModel
from foveate.hf.layer.interface import lookers
from foveate.hf.model.decoder import DecoderPath
from foveate.hf.pruning.patch_tokens import PatchTokens
from foveate.policies.pruning import Prune, TowerAttention
from foveate.policies.spec import print_value

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
        self.said, self.tokens = print_value(stage), PatchTokens(model)
        stacks = _stacks(model, place)
        index = _index(getattr(config, "vision_feature_layer", -1))
        self.layers = [stack[index] for _, stack in stacks]
        self.module = stacks[0][0] if stacks else None
        if self.tokens.unknown or not self.layers:
            raise self._refused(self.tokens.unknown or "this model's has no layers that are known")
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
        self.tokens.follow(undo, self.module)
        for layer in self.layers:
            undo.callback(layer.register_forward_pre_hook(self._begins).remove)
            for part in layer.modules():
                lookers[id(part)] = self._look
                undo.callback(lookers.pop, id(part), None)

    def _begins(self, layer: nn.Module, args: Any) -> None:
        self._calls.clear()  # of images that nothing was made of
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
        """How it looked at the visual tokens of a pass: those marked, row by row, are those of the
        images that it has just seen. Rows that stand several times (beams) share an image.

        Raises:
            UnsupportedModel: it has seen other images, or none.
        """
        calls = list(self._calls)
        self._calls.clear()
        joined, of_patches = self.tokens.joined([self._said_of(one) for one in calls])
        tokens, wanted = len(joined), int(vision.sum())
        times = wanted // tokens if tokens else 0
        once = vision[:: max(1, times)]
        if times * tokens != wanted or not torch.equal(once.repeat_interleave(times, 0), vision):
            raise self._refused(
                f"it has just seen images of {tokens} visual tokens, where this pass has {wanted}: "
                "the tower has to see a pass's images, all in one call, in the call of the model; "
                "and of a model that packs tiles, images alone and no videos, whose frames it pools"
            )
        paid = joined[:, 0].masked_fill(~of_patches, -torch.inf)
        return TowerAttention(*(_at(once, each, times) for each in (paid, joined[:, 1:])))

    def _said_of(self, call: TowerCall) -> Float[Tensor, "n p c"]:
        """Of each patch of a call: what it is paid, then the mean of its keys over heads."""
        keys = call.k.float().mean(1)
        return torch.cat([call.paid(self.by_class)[..., None], keys], -1)[:, int(self.by_class) :]


def _at(vision: Bool[Tensor, "b t"], values: Tensor, times: int) -> Tensor:
    """The values at the tokens marked, zeros elsewhere; every row so many times."""
    values = values.to(vision.device)
    placed = values.new_zeros(*vision.shape, *values.shape[1:])
    placed[vision] = values
    return placed.repeat_interleave(times, 0)


def _stacks(model: PreTrainedModel, place: DecoderPath) -> list[tuple[nn.Module, nn.ModuleList]]:
    """The lists of modules outside the decoder that have as many as the tower has layers, where
    these have attention; each behind the module that it is a part of.
    """
    vision = getattr(model.config, "vision_config", None)
    depth = getattr(vision, "num_hidden_layers", None) or getattr(vision, "depth", 0)
    own = {id(part) for part in place.decoder.modules()}
    return [
        (owner, part)
        for owner in model.modules()
        for part in owner.children()
        if isinstance(part, nn.ModuleList) and id(part) not in own
        if depth and len(part) == depth and _attends(part[-1])
    ]


def _attends(layer: nn.Module) -> bool:
    """Whether a layer has attention: a tower may have as many of others, which merge patches."""
    return any("attn" in name or "attention" in name for name, _ in layer.named_modules())


def _index(chosen: Any) -> int:
    """Of the layer whose output is the hidden state of that number (the first is the input)."""
    number = chosen[-1] if isinstance(chosen, (list, tuple)) else chosen
    return int(number) if number < 0 else max(0, int(number) - 1)
