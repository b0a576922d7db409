"""Images of which many patches are equal, as on a screen, and literal readings of what PixelPrune
leaves out of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    LlavaConfig,
    LlavaForConditionalGeneration,
    PixtralVisionConfig,
    PreTrainedModel,
)

from tests import zoo
from tests.zoo import text_models
from tests.zoo.weights import randomise

CELLS = {"internvl": 8, "idefics3": 8, "smolvlm": 8, "mobilevlm": 8}
"""Sides in pixels of what becomes a visual token; 4 in the others whose patches are not merged."""
PIXTRAL = "llava with pixtral"


def screen(family: str, inputs: dict[str, Tensor], seed: int = 0) -> dict[str, Tensor]:
    """The inputs with pixels of few colours: one or two of three tokens repeat others."""
    draw = torch.Generator().manual_seed(seed)
    pixels = inputs["pixel_values"]
    if pixels.ndim == 2:  # Qwen-VL: a token's four patches follow each other
        cells = pixels.view(-1, 4, pixels.shape[-1]).clone()
        colours = torch.randint(0, 3, (len(cells),), generator=draw)
        colours[:2], colours[2] = 0, 2  # the first image has both kinds
        for colour in (0, 1):
            cells[colours == colour] = float(colour)
        return {**inputs, "pixel_values": cells.view_as(pixels)}
    side = CELLS.get(family, 4)
    *some, height, width = pixels.shape
    colours = torch.randint(0, 3, (*some[:-1], height // side, width // side), generator=draw)
    colours = colours.repeat_interleave(side, -2).repeat_interleave(side, -1).unsqueeze(-3)
    painted = torch.where(colours < 2, colours.to(pixels), pixels)
    return {**inputs, "pixel_values": painted}


def left_out(grid: Any) -> list[list[bool]]:
    """Which tokens of an image's rows are left out, by the paper's rule, one by one."""
    rows, columns = len(grid), len(grid[0])
    found = [[False] * columns for _ in range(rows)]
    for r in range(rows):
        for c in range(columns):
            if r == c == 0:
                continue
            if r == 0:
                predicted = grid[r][c - 1]
            elif c == 0:
                predicted = grid[r - 1][c]
            else:
                left, above, corner = grid[r][c - 1], grid[r - 1][c], grid[r - 1][c - 1]
                edge = torch.equal(corner, left) and not torch.equal(corner, above)
                predicted = above if edge else left
            found[r][c] = torch.equal(grid[r][c], predicted)
    return found


def tokens_left_out(family: str, inputs: dict[str, Tensor]) -> list[bool]:
    """The same of all images, in the order of their tokens; not of tiles that a model packs."""
    pixels, found = inputs["pixel_values"], []
    if pixels.ndim == 2:
        cells = iter(pixels.view(-1, 4, pixels.shape[-1]))
        for frames, height, width in inputs["image_grid_thw"].tolist():
            for _ in range(frames):
                grid = [[next(cells) for _ in range(width // 2)] for _ in range(height // 2)]
                found += [mark for row in left_out(grid) for mark in row]
        return found
    side = CELLS.get(family, 4)
    sizes = inputs.get("image_sizes", [pixels.shape[-2:]] * len(pixels.flatten(0, -4)))
    for image, (height, width) in zip(pixels.flatten(0, -4), sizes, strict=True):
        grid = [
            [image[:, y : y + side, x : x + side] for x in range(0, int(width), side)]
            for y in range(0, int(height), side)
        ]
        found += [mark for row in left_out(grid) for mark in row]
    return found


def pixtral() -> PreTrainedModel:
    """LLaVA with Pixtral's encoder, which reads images of several sizes: as the demo model."""
    config = LlavaConfig(
        vision_config=PixtralVisionConfig(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=24,
            patch_size=4,
        ),
        text_config=text_models.llama_config(),
        image_token_index=zoo.IMAGE,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    model = LlavaForConditionalGeneration(config)
    randomise(model, PIXTRAL)
    model.eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = zoo.PAD
    return model


def pixtral_inputs() -> dict[str, Tensor]:
    """Two rows with an image each, of 4 by 3 and of 2 by 5 tokens, the second padded."""
    draw = torch.Generator().manual_seed(0)
    sizes = torch.tensor([[16, 12], [8, 20]])
    pixels = torch.randn(2, 3, 16, 20, generator=draw)
    rows = []
    for count in (12, 10):
        text = torch.randint(zoo.TEXT_FROM, zoo.VOCAB, (20,), generator=draw)
        image = torch.full((count,), zoo.IMAGE)
        rows.append(torch.cat([text[:6], image, text[6:]]))
    ids = torch.full((2, 32), zoo.PAD)
    for row, tokens in enumerate(rows):
        ids[row, 32 - len(tokens) :] = tokens
    return {
        "input_ids": ids,
        "attention_mask": (ids != zoo.PAD).long(),
        "pixel_values": pixels,
        "image_sizes": sizes,
    }


# The stock encoder, which does not see what was left out


@contextmanager
def masked(
    model: PreTrainedModel, inputs: dict[str, Tensor], tokens: list[bool], first: int = 0
) -> Iterator[None]:
    """Inside, patches of these tokens are seen by no other patch of the stock encoder, from its
    layer ``first`` on.
    """
    tower = getattr(model.model, "vision_tower", None)
    with ExitStack() as undo:
        if tower is not None:
            hidden = torch.tensor(tokens)
            for layer in tower.transformer.layers[first:]:
                hook = layer.register_forward_pre_hook(_hiding(hidden), with_kwargs=True)
                undo.callback(hook.remove)
        else:
            hidden = torch.tensor(_in_order(model, inputs, tokens)).repeat_interleave(4)
            for block in model.model.visual.blocks[first:]:
                undo.callback(setattr, block.attn, "forward", block.attn.forward)
                block.attn.forward = _attending(block.attn, hidden)
        yield


def _hiding(hidden: Tensor) -> Any:
    def hide(module: nn.Module, args: Any, kwargs: Any) -> Any:
        states, mask, *rest = args
        mask = mask.masked_fill(hidden, torch.finfo(mask.dtype).min)
        return (states, mask, *rest), kwargs

    return hide


def _in_order(model: PreTrainedModel, inputs: dict[str, Tensor], tokens: list[bool]) -> list[bool]:
    """The tokens in the order of the blocks: window by window in Qwen2.5-VL."""
    vision = model.config.vision_config
    if not hasattr(vision, "window_size"):
        return tokens
    window, found, start = vision.window_size // vision.patch_size // 2, [], 0
    for frames, height, width in inputs["image_grid_thw"].tolist():
        at = [
            (f, y, x) for f in range(frames) for y in range(height // 2) for x in range(width // 2)
        ]
        order = sorted(
            range(len(at)),
            key=lambda i, at=at: (at[i][0], at[i][1] // window, at[i][2] // window, *at[i][1:]),
        )
        found += [tokens[start + i] for i in order]
        start += len(at)
    return found


def _attending(attn: nn.Module, hidden: Tensor) -> Any:
    """Attention of Qwen-VL's encoders, written out, in which hidden patches see only themselves."""

    def forward(
        hidden_states: Tensor, cu_seqlens: Tensor, position_embeddings: Any = None, **more: Any
    ) -> Tensor:
        n = len(hidden_states)
        q, k, v = attn.qkv(hidden_states).view(n, 3, attn.num_heads, -1).permute(1, 2, 0, 3)
        cos, sin = position_embeddings
        q, k = (x * cos + torch.cat([-b, a], -1) * sin for x in (q, k) for a, b in [x.chunk(2, -1)])
        part = torch.bucketize(torch.arange(n), cu_seqlens.long(), right=True)
        visible = (part[:, None] == part) & (~hidden | torch.eye(n, dtype=torch.bool))
        logits = (q @ k.mT) * q.shape[-1] ** -0.5
        weights = logits.masked_fill(~visible, -torch.inf).softmax(-1)
        return attn.proj((weights @ v).transpose(0, 1).reshape(n, -1))

    return forward
