"""Attention of a model's image tower to its patches, for methods that select visual tokens by it.

The attention of one layer is observed when it is called, under any implementation: the layer whose
output the decoder receives (``vision_feature_layer``, or the last one).

The conversion of patches to visual tokens is known for some model families. Values of patches are
combined as the model combines their features: a token of several patches gets their mean.
LLaVA-NeXT and LLaVA-OneVision pack overview and tiles in a method of their own, which drops padding
and adds newline tokens; that method packs these values, too, so that its rules need not be repeated
here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from foveate.errors import UnsupportedModel
from foveate.hf.layer.hooks import named, wrap
from foveate.hf.layer.interface import lookers
from foveate.hf.model.decoder import DecoderPath
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
        stacks = _stacks(model, path)
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
        tokens, marked = len(joined), int(vision.sum())
        times = marked // tokens if tokens else 0
        once = vision[:: max(1, times)]
        if times * tokens != marked or not torch.equal(once.repeat_interleave(times, 0), vision):
            raise self._refused(
                f"the tower has just read images of {tokens} visual tokens, and this pass has "
                f"{marked}: pass all images of a prompt in one call of the model; with models that "
                "pack tiles, images only and no videos, whose frames they pool"
            )
        received = joined[:, 0].masked_fill(~of_patches, -torch.inf)
        return TowerAttention(
            *(_scatter(once, values, times) for values in (received, joined[:, 1:]))
        )

    def _values_of(self, call: TowerCall) -> Float[Tensor, "n p c"]:
        """Return, for each patch of a call, the received attention, then the mean of its keys over
        heads.
        """
        keys = call.k.float().mean(1)
        values = torch.cat([call.received(self.by_class)[..., None], keys], -1)
        return values[:, int(self.by_class) :]


def _scatter(vision: Bool[Tensor, "b t"], values: Tensor, times: int) -> Tensor:
    """Put the values at the marked tokens, zeros elsewhere; repeat every row ``times`` times."""
    values = values.to(vision.device)
    result = values.new_zeros(*vision.shape, *values.shape[1:])
    result[vision] = values
    return result.repeat_interleave(times, 0)


def _stacks(model: PreTrainedModel, path: DecoderPath) -> list[tuple[nn.Module, nn.ModuleList]]:
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


# Conversion of patches to tokens

ONE_EACH = ("llava", "vipllava", "paligemma")
"""Model types with a token per patch."""
IN_SQUARES = ("internvl", "idefics3", "smolvlm", "foveate_mobilevlm_v2")
"""Model types with a token per square of patches, in square images."""
IN_RUNS = ("qwen2_vl", "qwen3_vl", "qwen3_vl_moe")
"""Model types with a token per run of consecutive patches."""
IN_WINDOWS = ("qwen2_5_vl",)
"""Model types like IN_RUNS, whose tower reads the runs window by window."""
PACKED = ("llava_next", "llava_onevision")
"""Model types whose own method packs the patches of an image's tiles into tokens."""
KNOWN = (*ONE_EACH, *IN_SQUARES, *IN_RUNS, *IN_WINDOWS, *PACKED)

_PACK, _FEATURES, _LINE_END = "pack_image_features", "image_features", "image_newline"


class Joined(NamedTuple):
    """Values of each token, and True for tokens of patches: newline tokens have none."""

    values: Float[Tensor, "v c"]
    of_patches: Bool[Tensor, "v"]


class _Packing(NamedTuple):
    """A call of the packing method: the method, its other arguments, and the number of tiles of
    each image.
    """

    pack: Callable[..., Any]
    kwargs: dict[str, Any]
    tiles: list[int]


class PatchTokens:
    """Conversion of one model's patches to tokens. ``unknown`` is the reason if it is unknown, else
    empty.
    """

    def __init__(self, model: PreTrainedModel):
        config = model.config
        self.model, self.kind = model, config.model_type
        self.unknown = _unknown(config)
        self.each = 0 if self.unknown else _patches_of_a_token(config)
        self._packing: _Packing | None = None
        self._grids: list[list[int]] = []  # of the tower's latest call: frames, height, width

    def follow(self, undo: ExitStack, tower: nn.Module | None) -> None:
        """Observe the model's packing method or the grids of the tower's images, until ``undo`` is
        closed. ``tower``: the module whose layers read the patches.
        """
        undo.callback(self.forget)
        if self.kind in PACKED:
            for module in self.model.modules():
                if hasattr(module, _PACK):
                    wrap(undo, module, _PACK, self._note_packing)
        if self.kind in IN_WINDOWS and tower is not None:
            hook = tower.register_forward_pre_hook(self._note_grids, with_kwargs=True)
            undo.callback(hook.remove)

    def forget(self) -> None:
        """Forget the packing of earlier images."""
        self._packing = None

    def _note_packing(self, pack: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = {**named(pack, args), **kwargs}
        tiles = [len(image) for image in arguments.pop(_FEATURES)]
        self._packing = _Packing(pack, arguments, tiles)  # of nested calls, the innermost stays
        return pack(*args, **kwargs)

    def _note_grids(self, tower: nn.Module, args: Any, kwargs: Any) -> None:
        arguments = {**named(tower.forward, args), **kwargs}
        self._grids = arguments["grid_thw"].tolist()

    def joined(self, values: Sequence[Float[Tensor, "_ _ c"]]) -> Joined:
        """Combine the values of patches into those of tokens. ``values``: by call of attention,
        whose images may differ in size. Empty if the numbers do not fit.
        """
        if self.kind in PACKED:
            return self._packed(torch.cat(list(values))) if values else _NONE
        join = self._in_squares if self.kind in IN_SQUARES else self._in_runs
        tokens = torch.cat([join(image) for image in values]) if values else _NONE.values
        if self.kind in IN_WINDOWS:
            order = self._window_order().to(tokens.device)
            tokens = tokens[order] if len(order) == len(tokens) else tokens[:0]
        return Joined(tokens, torch.ones(len(tokens), dtype=torch.bool, device=tokens.device))

    def _packed(self, values: Float[Tensor, "n t c"]) -> Joined:
        if self._packing is None or sum(self._packing.tiles) != len(values):
            return _NONE
        pack, kwargs, tiles = self._packing
        flags = values.new_ones(*values.shape[:2], 1)  # 1 at patches; newline tokens get 0
        marked = torch.cat([values, flags], -1)
        if kwargs.get(_LINE_END) is not None:
            kwargs = {**kwargs, _LINE_END: values.new_zeros(marked.shape[2])}
        packed, *_ = pack(**kwargs, **{_FEATURES: torch.split(marked, tiles)})
        tokens = torch.cat(list(packed))
        return Joined(tokens[:, :-1], tokens[:, -1] > 0.5)

    def _in_squares(self, values: Float[Tensor, "n t c"]) -> Float[Tensor, "v c"]:
        n, t, c = values.shape
        side, cell = math.isqrt(t), math.isqrt(self.each)
        if side**2 != t or side % cell:
            return values.new_zeros(0, c)
        squares = values.view(n, side // cell, cell, side // cell, cell, c)
        return squares.mean((2, 4)).view(-1, c)

    def _in_runs(self, values: Float[Tensor, "n t c"]) -> Float[Tensor, "v c"]:
        if values.shape[1] % self.each:
            return values.new_zeros(0, values.shape[2])
        return values.reshape(-1, self.each, values.shape[2]).mean(1)

    def _window_order(self) -> Int[Tensor, "v"]:
        """Return the position of each token in the order of windows, for all images."""
        vision, start = self.model.config.vision_config, 0
        merge, orders = vision.spatial_merge_size, [torch.zeros(0, dtype=torch.long, device="cpu")]
        window = vision.window_size // merge // vision.patch_size
        for frames, height, width in self._grids:
            order = in_windows(frames, height // merge, width // merge, window)
            orders.append(start + order)
            start += len(order)
        return torch.cat(orders)


_NONE = Joined(
    torch.zeros(0, 1, dtype=torch.float32, device="cpu"),
    torch.zeros(0, dtype=torch.bool, device="cpu"),
)


def in_windows(frames: int, rows: int, columns: int, window: int) -> Int[Tensor, "v"]:
    """Return the position of each token in the order of windows of ``window`` by ``window`` tokens,
    line by line within each. The tokens are sorted by frame and line.
    """
    axes = [torch.arange(n, device="cpu") for n in (frames, rows, columns)]
    frame, y, x = (axis.flatten() for axis in torch.meshgrid(*axes, indexing="ij"))
    order = (frame * rows + y // window) * columns + x // window
    order = (order * window + y % window) * window + x % window
    return order.argsort().argsort()


def _unknown(config: Any) -> str:
    kind = config.model_type
    if kind not in KNOWN:
        return (
            f"how patches become tokens is unknown for this {kind} (known: "
            f"{', '.join(sorted(KNOWN))}; a resampler computes each token from all patches)"
        )
    vision = config.vision_config
    if kind in IN_WINDOWS and vision.depth - 1 not in vision.fullatt_block_indexes:
        return (
            f"the last layer of this {kind}'s tower attends within windows, so its attention "
            "cannot be compared over an image"
        )
    return (
        ""
        if kind in PACKED or _patches_of_a_token(config)
        else (f"the patches of this {kind}'s tower form no complete squares")
    )


def _patches_of_a_token(config: Any) -> int:
    """Return the number of patches per token from the configuration; 0 if they form no complete
    squares.
    """
    vision, kind = config.vision_config, config.model_type
    if kind in ONE_EACH or kind in PACKED:
        return 1
    if kind in IN_RUNS or kind in IN_WINDOWS:
        return int(vision.spatial_merge_size) ** 2
    if kind == "internvl":
        return int(round(1 / config.downsample_ratio) ** 2)
    if hasattr(config, "scale_factor"):
        return int(config.scale_factor) ** 2
    side = vision.image_size // vision.patch_size
    return 0 if side % config.projector_grid else (side // config.projector_grid) ** 2
