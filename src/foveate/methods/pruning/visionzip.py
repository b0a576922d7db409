"""VisionZip: the visual tokens that the image tower looks at, and a summary of the others.

Before the first layer, the tokens of each image that the tower pays most attention (its class
token, or all of its queries where it has none) go on as they are: the dominant ones. Of the others
some at even distances are targets; all that are left go to the target whose key in the tower is
most like theirs, and their mean is added to it: the contextual ones.

Departs from the release in: tokens are merged as the decoder reads them, behind the projector,
where the release merges before it; what goes on keeps its position, where the release numbers it
anew, contextual tokens last; the class token, which it lets through, is no token of the prompt
here; and of an image in tiles (LLaVA-NeXT) overview and tiles share one count, where it keeps
the same number of each. Ends of lines, which no patch makes, come last, as it leaves them out.
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
from foveate.stages.pruned import BeforeAllLayers


@prunes("visionzip", "yang2025visionzip")
class VisionZipPrune(BeforeAllLayers):
    """Visual tokens that the image tower attends to most, and others merged into a few.

    ``contextual`` is the share of what goes on that others are merged into: 10 of 64 tokens in the
    paper. ``keep`` is a share of each image; of one in tiles, ends of lines go on where there is
    room for all that patches make.

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
            wanted = int(going_on(share(self.keep), at.new_tensor([len(at)])))
            of_patches = seen.paid[row, at] > -torch.inf
            line_ends, at = at[~of_patches], at[of_patches]
            count = min(wanted, len(at))
            goes_on[row, line_ends[: wanted - count]] = True
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
    """The places of each image's tokens, row by row."""
    for row, image in enumerate(tokens.image.masked_fill(~tokens.vision, -1)):
        for number in image[image >= 0].unique().tolist():
            yield row, (image == number).nonzero()[:, 0]


def at_even_distances(rest: Int[Tensor, "v"], count: int) -> Bool[Tensor, "v"]:
    """Marks ``count`` of the tokens, at even distances from the first on."""
    places = torch.arange(len(rest), device=rest.device)
    step = max(1, len(rest) // max(1, count))
    return (places % step == 0) & (places < step * count)


def contextual(
    hidden: Float[Tensor, "v c"], keys: Float[Tensor, "v d"], targets: Bool[Tensor, "v"]
) -> Float[Tensor, "m c"]:
    """The targets, plus the mean of those of the others whose keys are most like theirs."""
    unit = F.normalize(keys, dim=-1)
    into = (unit[~targets] @ unit[targets].T).argmax(-1)
    chosen = F.one_hot(into, int(targets.sum())).to(hidden.dtype)
    total, count = chosen.T @ hidden[~targets], chosen.sum(0).clamp_min(1)
    return hidden[targets] + total / count[:, None]
