"""ChunkKV: whole chunks of consecutive tokens, ranked by the attention of the last queries.

Differences from the paper, and from its code in kvpress:

* The budget is exact: the last chunk is cut by score, where kvpress keeps a number of chunks,
  rounded down.
* Chunks are counted from the row's first token, whatever its padding.
* The window, which is always kept, fills no chunk and votes for none.
* Reusing one layer's choice in the next layers, which saves time and no memory, is left out.

The paper adds up a chunk's scores (`total="sum"`); the code takes their mean, which differs for the
last, shorter chunk.
"""

from __future__ import annotations

from math import isqrt
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.cache.layer import Scored
from foveate.cache.slots import Slots, derived
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Kernel, Positive, Window
from foveate.stages import Pool, Reduction, TopK, Uniform, WindowAttention, highest

Images = Literal["text", "runs", "rows", "blocks"]
Total = Literal["mean", "sum"]


@stage("best_chunks")
class BestChunks(TopK):
    """Selection of the chunks of ``length`` tokens with the highest mean score (or "sum").

    They are kept beside the tokens that ``top_k`` always keeps. Of the first chunk that does not
    fit completely, the highest scores are kept.

    With ``shared`` all heads of the layer rank chunks together. ``images`` sets an image's chunks:
    "text" treats images like text; "runs" are consecutive visual tokens, where no chunk crosses an
    image's border; "rows" are rows of patches; "blocks" are squares of at most ``length`` patches.
    Where an image is not square, judged by its number of tokens, rows and blocks fall back to runs.

    Source: ChunkKV (arXiv:2502.00299), and ChunkKVPress of kvpress.
    """

    length: Positive = 10
    images: Images = "text"
    shared: bool = True
    total: Total = "mean"

    @property
    def head_by_head(self) -> bool:
        return not self.shared

    def __call__(self, scored: Scored, counts: Int[Tensor, "b h"]) -> Bool[Tensor, "b h n"]:
        values = scored.scores.values
        free = values.isfinite()
        chunk = chunks_of(scored.layer.slots, self.length, self.images)
        worth, sizes = self._chunks(values, free, chunk)
        best = worth.argsort(dim=-1, descending=True, stable=True)
        ends = sizes.gather(-1, best).cumsum(-1)
        complete = (ends <= (counts - scored.protected)[..., None]).sum(-1, keepdim=True)
        rank = best.argsort(-1).gather(-1, chunk)
        lifted = values.masked_fill(free & (rank < complete), torch.inf)
        return highest(lifted.masked_fill(free & (rank > complete), -torch.inf), counts)

    def _chunks(
        self,
        values: Float[Tensor, "b h n"],
        free: Bool[Tensor, "b h n"],
        chunk: Int[Tensor, "b h n"],
    ) -> tuple[Float[Tensor, "b h c"], Int[Tensor, "b h c"]]:
        """Return each head's score of each chunk, and its number of unprotected tokens there."""
        empty = values.new_zeros(*chunk.shape[:2], int(chunk.max()) + 1)
        sums = empty.scatter_add(-1, chunk, values.where(free, 0.0))
        sizes = empty.scatter_add(-1, chunk, free.float())
        tokens = sizes
        if self.shared:
            sums, tokens = (t.sum(1, keepdim=True).expand_as(t) for t in (sums, sizes))
        worth = sums if self.total == "sum" else sums / tokens.clamp_min(1)
        return worth.masked_fill(sizes == 0, -torch.inf), sizes.long()


@derived
def chunks_of(slots: Slots, length: int, images: Images) -> Int[Tensor, "b h n"]:
    """Return the number of each slot's chunk, ascending along the row.

    Heads that hold the same tokens have the same numbers.
    """
    pos = slots.pos.long().clamp_min(0)
    if images == "text":
        return pos // length
    image, spot = slots.known_image.long(), slots.known_spot.long().clamp_min(0)
    before = (image + 1).cummax(-1).values  # images that have begun
    segment = torch.where(image >= 0, 2 * image + 1, 2 * before)
    part = torch.where(image >= 0, _parts(image, spot, length, images), pos // length)
    combined = segment * (int(part.max()) + 1) + part
    numbers: Tensor = torch.unique(combined, return_inverse=True)[1]
    return numbers


def _parts(
    image: Int[Tensor, "b h n"], spot: Int[Tensor, "b h n"], length: int, images: Images
) -> Int[Tensor, "b h n"]:
    """Return the number of each visual token's chunk within its image."""
    runs = spot // length
    if images == "runs":
        return runs
    of_row, known = image.clamp_min(0).flatten(1), (spot + 1) * (image >= 0)
    image_tokens = spot.new_zeros(len(spot), int(of_row.max()) + 1)
    image_tokens = image_tokens.scatter_reduce(1, of_row, known.flatten(1), "amax")
    tokens = image_tokens.gather(1, of_row).view_as(spot)
    side = tokens.double().sqrt().round().long().clamp_min(1)
    row, column = spot // side, spot % side
    if images == "rows":
        parts = row
    else:
        edge = isqrt(length)
        parts = row // edge * (side // edge + 1) + column // edge
    square: Tensor = side * side == tokens
    return parts.where(square, runs)


@method("liu2025chunkkv", adds=("select",))
def chunkkv(
    *,
    budget: Amount,
    length: Positive = 10,
    images: Images = "text",
    shared: bool = True,
    total: Total = "mean",
    window: Window = 32,
    kernel: Kernel = 5,
    pool: Pool = "none",
    group: Reduction = "mean",
) -> Policy:
    """Whole chunks of consecutive tokens that the last queries attend to.

    ``images`` can cut chunks along images, or along rows or blocks of patches. With ``shared`` all
    heads of a layer rank chunks together.

    Args:
        length: Tokens of a chunk.
        images: Chunk borders in images: none, image borders, rows or blocks of patches.
        shared: Rank chunks by all heads of a layer together.
        total: Reduction of a chunk's scores: mean or sum.

    Defaults:
        `length`: the paper (kvpress: 20); window: SnapKV's; the paper does not pool
    """
    return Policy(
        score=WindowAttention(window=window, kernel=kernel, pool=pool, group=group),
        budget=Uniform(amount=budget),
        select=BestChunks(recent=window, length=length, images=images, shared=shared, total=total),
    )
