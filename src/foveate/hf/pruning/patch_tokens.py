"""How the patches of an image tower become visual tokens, family by family.

What a tower says of its patches is put together as the model puts together their features: a token
that is made of several patches has their mean. LLaVA-NeXT and LLaVA-OneVision pack overview and
tiles in a method of their own, without padding and with ends of lines; that method packs these
numbers, too, so what it does to an image need not be known here.
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
"""A patch is a token."""
IN_SQUARES = ("internvl", "idefics3", "smolvlm", "foveate_mobilevlm_v2")
"""A square of patches is, of a square image."""
IN_RUNS = ("qwen2_vl", "qwen3_vl", "qwen3_vl_moe")
"""Patches that follow each other are."""
IN_WINDOWS = ("qwen2_5_vl",)
"""They are, and the tower reads them window by window."""
PACKED = ("llava_next", "llava_onevision")
"""The model's own method makes tokens of the patches of an image's tiles."""
KNOWN = (*ONE_EACH, *IN_SQUARES, *IN_RUNS, *IN_WINDOWS, *PACKED)

_PACK, _FEATURES, _LINE_END = "pack_image_features", "image_features", "image_newline"


class Joined(NamedTuple):
    """What is said of each token, and whether it is made of patches: ends of lines are not."""

    values: Float[Tensor, "v c"]
    of_patches: Bool[Tensor, "v"]


class _Packing(NamedTuple):
    """A call of the method that packs: itself, its other arguments, and the tiles of each image."""

    pack: Callable[..., Any]
    given: dict[str, Any]
    tiles: list[int]


class PatchTokens:
    """Of one model. ``unknown`` says why its tokens cannot be told, if they cannot."""

    def __init__(self, model: PreTrainedModel):
        config = model.config
        self.model, self.kind = model, config.model_type
        self.unknown = _unknown(config)
        self.each = 0 if self.unknown else _patches_of_a_token(config)
        self._packing: _Packing | None = None
        self._grids: list[list[int]] = []  # of the tower's latest call: frames, height, width

    def follow(self, undo: ExitStack, tower: nn.Module | None) -> None:
        """From now on it sees what tokens are made by, until it is undone; ``tower`` is the module
        whose layers read the patches.
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
        """The tower looks at other images."""
        self._packing = None

    def _note_packing(self, pack: Any, *args: Any, **kwargs: Any) -> Any:
        given = {**named(pack, args), **kwargs}
        tiles = [len(one) for one in given.pop(_FEATURES)]
        self._packing = _Packing(pack, given, tiles)  # the innermost is noted last, and wraps none
        return pack(*args, **kwargs)

    def _note_grids(self, tower: nn.Module, args: Any, kwargs: Any) -> None:
        given = {**named(tower.forward, args), **kwargs}
        self._grids = given["grid_thw"].tolist()

    def joined(self, values: Sequence[Float[Tensor, "_ _ c"]]) -> Joined:
        """What is said of all tokens, given what is said of the patches of each call of attention,
        whose images may differ in size; of none where it does not come out even.
        """
        if self.kind in PACKED:
            return self._packed(torch.cat(list(values))) if values else _NONE
        join = self._in_squares if self.kind in IN_SQUARES else self._in_runs
        tokens = torch.cat([join(each) for each in values]) if values else _NONE.values
        if self.kind in IN_WINDOWS:
            places = self._places().to(tokens.device)
            tokens = tokens[places] if len(places) == len(tokens) else tokens[:0]
        return Joined(tokens, torch.ones(len(tokens), dtype=torch.bool, device=tokens.device))

    def _packed(self, values: Float[Tensor, "n t c"]) -> Joined:
        if self._packing is None or sum(self._packing.tiles) != len(values):
            return _NONE
        pack, given, tiles = self._packing
        ones = values.new_ones(*values.shape[:2], 1)  # of patches; zeros at ends of lines
        marked = torch.cat([values, ones], -1)
        if given.get(_LINE_END) is not None:
            given = {**given, _LINE_END: values.new_zeros(marked.shape[2])}
        packed, *_ = pack(**given, **{_FEATURES: torch.split(marked, tiles)})
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

    def _places(self) -> Int[Tensor, "v"]:
        """At which place each token stands in the order of windows, of all images."""
        vision, start = self.model.config.vision_config, 0
        merge, each = vision.spatial_merge_size, [torch.zeros(0, dtype=torch.long, device="cpu")]
        window = vision.window_size // merge // vision.patch_size
        for frames, height, width in self._grids:
            places = in_windows(frames, height // merge, width // merge, window)
            each.append(start + places)
            start += len(places)
        return torch.cat(each)


_NONE = Joined(
    torch.zeros(0, 1, dtype=torch.float32, device="cpu"),
    torch.zeros(0, dtype=torch.bool, device="cpu"),
)


def in_windows(frames: int, rows: int, columns: int, window: int) -> Int[Tensor, "v"]:
    """Of tokens frame by frame and line by line, at which place each stands where windows of so
    many by so many follow each other, line by line within each.
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
            f"how patches become tokens is not known of this {kind} (it is of "
            f"{', '.join(sorted(KNOWN))}; where a resampler makes each token of all patches, no "
            "token has any of its own)"
        )
    vision = config.vision_config
    if kind in IN_WINDOWS and vision.depth - 1 not in vision.fullatt_block_indexes:
        return (
            f"the last layer of this {kind}'s tower looks within windows, so what it pays cannot "
            "be compared over an image"
        )
    return (
        ""
        if kind in PACKED or _patches_of_a_token(config)
        else (f"the patches of this {kind}'s tower make no whole squares")
    )


def _patches_of_a_token(config: Any) -> int:
    """How many they are, by the configuration; 0 where they make no whole squares."""
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
