"""VisionZip: visual tokens that the vision encoder attends to, and a summary of the others.

Before the first layer, the tokens of each image that receive the most attention in the encoder
(from its class token, or from all of its queries where it has none) stay as they are: the dominant
ones. Of the others some at even distances are targets; all that remain are assigned to the target
whose key in the encoder is most similar, and their mean is added to it: the contextual ones.

Differences from the release: tokens are merged as the decoder reads them, after the projector,
where the release merges before it; tokens keep their positions, where the release renumbers them,
contextual tokens last; the class token, which the release keeps, is no token of the prompt here;
and in a tiled image (LLaVA-NeXT) overview and tiles share one count, where the release keeps the
same number of each. Line-end tokens, which no patch produces, come last, as the release leaves them
out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.policies.amount import AmountLike
from foveate.policies.parameters import ShareBelow
from foveate.policies.prunes import prunes
from foveate.policies.pruning import EnteringTokens, Pruned, going_on, number_going_on, share
from foveate.stages.pruning_bases import BeforeAllLayers


@prunes("visionzip", "yang2025visionzip")
class VisionZipPrune(BeforeAllLayers):
    """Visual tokens that the vision encoder attends to most, with the others merged into a few.

    ``contextual`` is the share of the remaining tokens that others are merged into: 10 of 64 tokens
    in the paper. ``keep`` is a share of each image. In a tiled image, line-end tokens stay where
    the count exceeds the number of patch tokens.

    Source: VisionZip (arXiv:2412.04467), section 3 and the release.
    """

    reads_tower: ClassVar[bool] = True
    keep: AmountLike = "11.2%"
    contextual: ShareBelow = 0.15625

    def counts(self, depth: int, images: Sequence[int]) -> tuple[int, ...]:
        return (sum(number_going_on(share(self.keep), count) for count in images),)

    def __call__(self, tokens: EnteringTokens) -> Pruned:
        seen, hidden = tokens.seen(), tokens.hidden.clone()
        goes_on, changed = torch.zeros_like(tokens.vision), False
        for row, at in _images(tokens):
            total = int(going_on(share(self.keep), at.new_tensor([len(at)])))
            of_patches = seen.paid[row, at] > -torch.inf
            line_ends, at = at[~of_patches], at[of_patches]
            count = min(total, len(at))
            goes_on[row, line_ends[: total - count]] = True
            merged = int(count * self.contextual)
            dominant = seen.paid[row, at].topk(count - merged).indices
            goes_on[row, at[dominant]] = True
            rest = at[~goes_on[row, at]]
            targets = at_even_distances(rest, merged)
            goes_on[row, rest[targets]] = True
            if merged and not bool(targets.all()):
                summary = contextual(tokens.hidden[row, rest], seen.keys[row, rest], targets)
                hidden[row, rest[targets]], changed = summary, True
        return Pruned(goes_on, hidden if changed else None)


def _images(tokens: EnteringTokens) -> Iterator[tuple[int, Int[Tensor, "v"]]]:
    """Iterate over images, as a row and the positions of the image's tokens."""
    for row, image in enumerate(tokens.image.masked_fill(~tokens.vision, -1)):
        for number in image[image >= 0].unique().tolist():
            yield row, (image == number).nonzero()[:, 0]


def at_even_distances(rest: Int[Tensor, "v"], count: int) -> Bool[Tensor, "v"]:
    """Mark ``count`` of the tokens, at even distances from the first on."""
    index = torch.arange(len(rest), device=rest.device)
    step = max(1, len(rest) // max(1, count))
    return (index % step == 0) & (index < step * count)


def contextual(
    hidden: Float[Tensor, "v c"], keys: Float[Tensor, "v d"], targets: Bool[Tensor, "v"]
) -> Float[Tensor, "m c"]:
    """Return the targets, each plus the mean of the other tokens whose keys it matches best."""
    unit = F.normalize(keys, dim=-1)
    into = (unit[~targets] @ unit[targets].T).argmax(-1)
    chosen = F.one_hot(into, int(targets.sum())).to(hidden.dtype)
    total, count = chosen.T @ hidden[~targets], chosen.sum(0).clamp_min(1)
    return hidden[targets] + total / count[:, None]
