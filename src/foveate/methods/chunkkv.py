"""ChunkKV: whole chunks of consecutive tokens, by what the last queries pay to each.

Departs from the paper, and from its code in kvpress, in: the budget, which is exact (the
last chunk is cut by score; there a number of chunks is kept, rounded down); chunks, which are
counted from the row's first token whatever its padding; what is always kept (the window), which
fills no chunk and votes for none; and the reuse of one layer's choice in the next ones, which saves
time, not memory, and is left out. The paper adds a chunk's scores up (`total="sum"`), the code
takes their mean, which differs for the last, shorter chunk.
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
    """Beside what ``top_k`` always keeps: the chunks of ``length`` tokens with the highest mean
    score (or "sum"), and of the chunk that no longer fits whole, its highest scores.

    With ``shared`` chunks are ranked by all heads of the layer together. ``images`` says what an
    image's chunks are: "text" makes no difference, "runs" are visual tokens that follow each other,
    no chunk reaching across an image's border, "rows" are rows of its patches, and "blocks" squares
    of at most ``length`` of them. Where an image is not as wide as it is high, as far as the number
    of its tokens tells, rows and blocks are runs.

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
        whole = (ends <= (counts - scored.protected)[..., None]).sum(-1, keepdim=True)
        place = best.argsort(-1).gather(-1, chunk)
        lifted = values.masked_fill(free & (place < whole), torch.inf)
        return highest(lifted.masked_fill(free & (place > whole), -torch.inf), counts)

    def _chunks(
        self,
        values: Float[Tensor, "b h n"],
        free: Bool[Tensor, "b h n"],
        chunk: Int[Tensor, "b h n"],
    ) -> tuple[Float[Tensor, "b h c"], Int[Tensor, "b h c"]]:
        """What each chunk is worth to each head, and how many free tokens the head holds of it."""
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
    """The number of each slot's chunk: ascending in the row, the same in heads that hold alike."""
    pos = slots.pos.long().clamp_min(0)
    if images == "text":
        return pos // length
    image, spot = slots.known_image.long(), slots.known_spot.long().clamp_min(0)
    before = (image + 1).cummax(-1).values  # images that have begun
    segment = torch.where(image >= 0, 2 * image + 1, 2 * before)
    part = torch.where(image >= 0, _parts(image, spot, length, images), pos // length)
    apart = segment * (int(part.max()) + 1) + part
    numbers: Tensor = torch.unique(apart, return_inverse=True)[1]
    return numbers


def _parts(
    image: Int[Tensor, "b h n"], spot: Int[Tensor, "b h n"], length: int, images: Images
) -> Int[Tensor, "b h n"]:
    """The number of the chunk within its image."""
    runs = spot // length
    if images == "runs":
        return runs
    of_row, known = image.clamp_min(0).flatten(1), (spot + 1) * (image >= 0)
    most = spot.new_zeros(len(spot), int(of_row.max()) + 1)
    most = most.scatter_reduce(1, of_row, known.flatten(1), "amax")
    tokens = most.gather(1, of_row).view_as(spot)
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
    """Keeps whole chunks of consecutive tokens that the last queries attend to.

    ``images`` may cut them along images, or rows or blocks of patches; ``shared``: all heads of a
    layer rank chunks together.

    Args:
        length: Tokens of a chunk.
        images: Whether chunks end where an image, a row or a block of it does.
        shared: Rank chunks by all heads of a layer together.
        total: How a chunk's scores become one.

    Defaults:
        `length`: the paper (kvpress: 20); window: SnapKV's; the paper does not pool
    """
    return Policy(
        score=WindowAttention(window=window, kernel=kernel, pool=pool, group=group),
        budget=Uniform(amount=budget),
        select=BestChunks(recent=window, length=length, images=images, shared=shared, total=total),
    )
