"""Conversion of patches to visual tokens, for the model families in which it is known.

Values of patches are combined as the model combines their features: a token of several patches gets
their mean. LLaVA-NeXT and LLaVA-OneVision pack overview and tiles in a method of their own, which
drops padding and adds newline tokens; that method packs these values, too, so that its rules need
not be repeated here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from foveate.hf.layer.hooks import named, wrap

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
            order = window_order(self.model.config.vision_config, self._grids).to(tokens.device)
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


_NONE = Joined(
    torch.zeros(0, 1, dtype=torch.float32, device="cpu"),
    torch.zeros(0, dtype=torch.bool, device="cpu"),
)


def window_order(vision: Any, grids: Sequence[Sequence[int]]) -> Int[Tensor, "v"]:
    """Return the position of each token in the order of windows, for all images. ``vision``: the
    tower's configuration; ``grids``: frames, height and width of each image in patches.
    """
    start, merge = 0, vision.spatial_merge_size
    orders = [torch.zeros(0, dtype=torch.long, device="cpu")]
    window = vision.window_size // merge // vision.patch_size
    for frames, height, width in grids:
        order = in_windows(frames, height // merge, width // merge, window)
        orders.append(start + order)
        start += len(order)
    return torch.cat(orders)


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
