"""Vision encoders that leave patches out: those whose pixels a prune stage calls repeated.

Every block of the encoder (or every block from some layer on) is called with the other patches
alone, at their own positions and within their own windows and images. Its output is spread over all
patches again, so that the code between blocks needs no change. What was left out becomes NaN:
tokens made of it are recognised in the decoder's inputs, and cannot be read unnoticed.

Known are the Qwen-VL families, and Pixtral's encoder in LLaVA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from foveate.errors import InvalidInput, UnsupportedModel
from foveate.hf.layer.hooks import named, wrap
from foveate.hf.model.decoder import DecoderPath
from foveate.hf.pruning.patch_tokens import IN_RUNS, IN_WINDOWS, window_order
from foveate.hf.pruning.tower import encoder_stacks
from foveate.policies.pruning import PixelPrune
from foveate.policies.spec import print_value

_PROJECTOR = "multi_modal_projector"
_PACKED_IMAGES = ("llava",)
"""Model types that may have Pixtral's encoder."""
_ENDS = ("cu_seqlens", "cu_seq_lens_q", "cu_seq_lens_k")
_LONGEST = {"max_seqlen": "cu_seqlens", "max_length_q": _ENDS[1], "max_length_k": _ENDS[2]}
"""Arguments with the longest sequence, and those with the ends of the sequences."""


def leaves_out(model: PreTrainedModel) -> bool:
    """Return True if this model's encoder can leave patches out."""
    return model.config.model_type in (*IN_RUNS, *IN_WINDOWS) or _is_pixtral(model)


def _is_pixtral(model: PreTrainedModel) -> bool:
    vision = getattr(model.config, "vision_config", None)
    is_llava = model.config.model_type in _PACKED_IMAGES
    return is_llava and getattr(vision, "model_type", None) == "pixtral"


class EncoderCut:
    """Cut of one model's vision encoder. ``waits``: patches were left out, and no pass has read the
    others yet.

    Raises:
        UnsupportedModel: the encoder's blocks were not found.
    """

    def __init__(self, model: PreTrainedModel, path: DecoderPath, stage: PixelPrune):
        self.stage, self.waits = stage, False
        self._active = self._called = self._left_out = False
        self._vision = model.config.vision_config
        stacks = encoder_stacks(model, path)
        if len(stacks) != 1:
            raise UnsupportedModel(
                f"the blocks of this {model.config.model_type}'s vision encoder were not found, so "
                "patches cannot be left out. Use another prune stage."
            )
        self._of_blocks, self.blocks = stacks[0]
        self._is_pixtral = _is_pixtral(model)
        self._has_windows = model.config.model_type in IN_WINDOWS
        self.first, self.each = int(getattr(stage, "encoder_layer", 0)), 1
        if self._is_pixtral:
            owners = (part for part in model.modules() if self._of_blocks in part.children())
            self.encoder = next(owners)
            named_parts = model.named_modules()
            self.mergers = [part for name, part in named_parts if name.endswith(_PROJECTOR)]
        else:
            self.encoder = self._of_blocks
            more = getattr(self.encoder, "deepstack_merger_list", ())
            self.mergers, self.each = [self.encoder.merger, *more], _merged(self._vision)
        self._kept: Int[Tensor, "k"] | None = None  # patches, in the order of the blocks
        self._before: Int[Tensor, "n"]  # number of kept patches in front of each
        self._cut: dict[int, tuple[Tensor, Tensor]] = {}

    def follow(self, undo: ExitStack) -> None:
        """Wrap the encoder, its blocks and its mergers, until ``undo`` is closed."""
        wrap(undo, self.encoder, "forward", self._encode)
        for block in self.blocks[self.first :]:
            wrap(undo, block, "forward", self._call_block)
        for merger in self.mergers:
            wrap(undo, merger, "forward", self._merge)

    def begin(self) -> None:
        """Begin a call from outside; forget earlier ones."""
        self._called = self._left_out = self.waits = False

    def start(self, active: bool) -> None:
        """Leave patches out from now on if ``active``, until the decoder is called."""
        self._active = active

    def take(
        self, hidden: Float[Tensor, "b t c"], vision: Bool[Tensor, "b t"]
    ) -> tuple[Float[Tensor, "b t c"], Bool[Tensor, "b t"]]:
        """Return the decoder's inputs with zeros where patches were left out, and these tokens.

        Raises:
            UnsupportedModel: the encoder was not called.
        """
        if not self._called:
            raise UnsupportedModel(
                f"{print_value(self.stage)} compares pixels, and this pass has visual tokens whose "
                "pixels were read elsewhere. Pass pixels with the prompt, or use another stage."
            )
        missing = hidden.isnan().any(-1) & vision & self._left_out
        self.waits, self._kept = False, None
        return hidden.masked_fill(missing[..., None], 0.0), missing

    def check(self, needed: Bool[Tensor, "b t"]) -> None:
        """Raise InvalidInput if tokens that were left out are ``needed``."""
        if bool(needed.any()):
            raise InvalidInput(
                "the prompt ends with a visual token whose patch repeats another, and was not "
                "encoded: the answer begins there. End the prompt with text."
            )

    # The encoder's calls

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _encode(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._kept = None
        if not self._active:
            return forward(*args, **kwargs)
        self._called = True
        repeated = self._repeated({**named(forward, args), **kwargs})
        if not bool(repeated.any()):
            return forward(*args, **kwargs)
        self._kept, self._left_out, self.waits = (~repeated).nonzero()[:, 0], True, True
        self._before = F.pad((~repeated).cumsum(0), (1, 0))
        try:
            return forward(*args, **kwargs)
        finally:
            self._cut = {}  # but not the kept patches: LLaVA's projector comes after its encoder

    def _repeated(self, inputs: dict[str, Any]) -> Bool[Tensor, "n"]:
        """Mark the repeated patches, in the order in which the blocks read them."""
        if self._is_pixtral:
            grids = cells_of_images(
                inputs["pixel_values"], inputs.get("image_sizes"), self._vision.patch_size
            )
            return torch.cat([self.stage.repeated(grid).flatten() for grid in grids])
        sizes: list[list[int]] = inputs["grid_thw"].tolist()
        grids = _merged_cells(inputs["hidden_states"], sizes, self._vision.spatial_merge_size)
        tokens = torch.cat([self.stage.repeated(grid).flatten() for grid in grids])
        if self._has_windows:
            in_order = torch.empty_like(tokens)
            in_order[window_order(self._vision, sizes).to(tokens.device)] = tokens
            tokens = in_order
        return tokens.repeat_interleave(self.each)

    def _call_block(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a block with the kept patches, and spread its output over all."""
        kept = self._kept
        if kept is None:
            return forward(*args, **kwargs)
        inputs = {**named(forward, args), **kwargs}
        states = inputs["hidden_states"]
        count, kept = states.shape[-2], kept.to(states.device)  # blocks may be on several devices
        cut = {name: self._cut_argument(name, value, kept) for name, value in inputs.items()}
        for name, ends in _LONGEST.items():
            if inputs.get(name) is not None and inputs.get(ends) is not None:
                cut[name] = int(cut[ends].diff().max())
        return _spread(forward(**cut), kept, count)

    def _merge(self, forward: Callable[..., Any], states: Tensor) -> Tensor:
        """Merge the kept patches to tokens, and spread these over all."""
        kept = self._kept
        if kept is None:
            return forward(states)  # type: ignore[no-any-return]
        kept = kept.to(states.device)
        tokens = kept[:: self.each] // self.each  # patches of a token follow each other
        count = states.shape[-2] // self.each
        return _spread(forward(states.index_select(-2, kept)), tokens, count)

    def _cut_argument(self, name: str, value: Any, kept: Int[Tensor, "k"]) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value)(self._cut_argument(name, part, kept) for part in value)
        if not isinstance(value, Tensor):
            return value
        if name == "hidden_states":  # differs from block to block
            return value.index_select(-2, kept)
        entry = self._cut.get(id(value))
        if entry is None or entry[0] is not value:
            entry = self._cut[id(value)] = value, self._cut_tensor(name, value, kept)
        return entry[1]

    def _cut_tensor(self, name: str, value: Tensor, kept: Int[Tensor, "k"]) -> Tensor:
        if name == "position_embeddings":
            return value.index_select(-2, kept)
        if name == "attention_mask":
            return value.index_select(-2, kept).index_select(-1, kept)
        if name in _ENDS:  # images or windows without kept patches vanish
            ends = self._before.to(value.device)[value.long()].to(value.dtype)
            return torch.cat([ends[:1], ends[1:][ends.diff() > 0]])
        return value


def _merged(vision: Any) -> int:
    return int(vision.spatial_merge_size) ** 2


def _spread(output: Tensor, kept: Int[Tensor, "k"], count: int) -> Tensor:
    """Put the rows of ``output`` at the kept indices of ``count``, and NaN elsewhere."""
    shape = list(output.shape)
    shape[-2] = count
    return output.new_full(shape, torch.nan).index_copy(-2, kept, output)


def _merged_cells(
    pixels: Float[Tensor, "n d"], sizes: list[list[int]], merge: int
) -> Iterator[Float[Tensor, "r c e"]]:
    """Iterate over frames, as the pixels of each visual token in rows and columns. The patches of
    a token follow each other.
    """
    cells = pixels.reshape(len(pixels) // merge**2, -1)
    for frames, height, width in sizes:
        rows, columns = height // merge, width // merge
        video, cells = cells[: frames * rows * columns], cells[frames * rows * columns :]
        yield from video.view(frames, rows, columns, -1)


def cells_of_images(
    pixels: Float[Tensor, "n x h w"], sizes: Any, side: int
) -> Iterator[Float[Tensor, "r c d"]]:
    """Iterate over images, as the pixels of squares of ``side`` pixels in rows and columns.
    ``sizes``: height and width of each image; None: all of it.
    """
    for index, image in enumerate(pixels):
        height, width = image.shape[-2:] if sizes is None else map(int, sizes[index])
        rows, columns = height // side, width // side
        squares = image[:, : rows * side, : columns * side].unflatten(1, (rows, side))
        squares = squares.unflatten(3, (columns, side)).permute(1, 3, 0, 2, 4)
        yield squares.reshape(rows, columns, -1)
