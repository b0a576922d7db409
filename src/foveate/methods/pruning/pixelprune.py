"""PixelPrune: patches whose pixels repeat an earlier patch's are left out.

Each patch of an image is predicted from its neighbours on the left, above and between them, by the
rule of LOCO-I (JPEG-LS): next to a vertical edge from the patch above, else from the patch on the
left. A patch that equals its prediction is left out. A patch is what becomes one visual token: in
the Qwen-VL families, four patches of the vision encoder.

With a tolerance, a patch that was left out predicts others by the pixels of the patch that it
repeats, so that no error adds up (the release's "anchored" mode, its default).

Differences from the release: ``tolerance`` is in the units of the processor's pixel values, where
the release first maps these to [0, 1]; frames of a video and tiles of an image are images of their
own, where the release leaves videos alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from foveate.policies.parameters import Count, Factor
from foveate.policies.prunes import prunes
from foveate.policies.pruning import EnteringTokens, Pruned

Distance = Literal["max", "mae", "rmse"]


@prunes("pixelprune", "wang2026pixelprune")
class PixelPrunePrune:
    """Visual tokens whose pixels do not repeat an earlier token's, left out before the encoder.

    ``tolerance`` is the largest ``distance`` between a patch and its prediction, in the units of
    the processor's pixel values: the release's threshold divided by the processor's ``image_std``.
    The first ``encoder_layer`` layers of an encoder that can leave patches out read them all.

    Source: PixelPrune (arXiv:2604.00886), section 3 and the release.
    """

    reads_pixels: ClassVar[bool] = True
    tolerance: Factor = 0.0
    distance: Distance = "max"
    encoder_layer: Count = 0

    def layers(self, depth: int) -> tuple[int, ...]:
        return (0,)

    def counts(self, depth: int, images: Sequence[int]) -> tuple[int, ...]:
        """Return the number of all visual tokens: how many repeat others depends on the pixels."""
        return (sum(images),)

    def __call__(self, tokens: EnteringTokens) -> Pruned:
        return Pruned(tokens.vision & ~tokens.pixel_repeats())

    def repeated(self, patches: Float[Tensor, "r c d"]) -> Bool[Tensor, "r c"]:
        """Mark the patches of an image that equal their prediction."""
        if not self.tolerance:
            return equal_to_predicted(patches)
        return near_predicted(patches.float(), float(self.tolerance), self.distance)


def equal_to_predicted(patches: Float[Tensor, "r c d"]) -> Bool[Tensor, "r c"]:
    """Mark the patches that equal their prediction in every pixel."""
    as_left = (patches[:, 1:] == patches[:, :-1]).all(-1)
    as_above = (patches[1:] == patches[:-1]).all(-1)
    repeated = as_left.new_zeros(patches.shape[:2])
    repeated[0, 1:], repeated[1:, 0] = as_left[0], as_above[:, 0]
    vertical_edge = as_above[:, :-1] & ~as_left[:-1]  # of the neighbours, only these two are equal
    repeated[1:, 1:] = torch.where(vertical_edge, as_above[:, 1:], as_left[1:])
    return repeated


def near_predicted(
    patches: Float[Tensor, "r c d"], tolerance: float, distance: Distance
) -> Bool[Tensor, "r c"]:
    """Mark the patches that are within ``tolerance`` of their prediction.

    A patch depends on neighbours that come earlier on the diagonals from lower left to upper right,
    so that each diagonal is computed at once.
    """
    rows, columns = patches.shape[:2]
    anchors = patches.clone()
    repeated = torch.zeros(rows, columns, dtype=torch.bool, device=patches.device)
    for diagonal in range(1, rows + columns - 1):
        first, last = max(0, diagonal - columns + 1), min(rows, diagonal + 1)
        r = torch.arange(first, last, device=patches.device)
        c = diagonal - r
        up, back = (r - 1).clamp_min(0), (c - 1).clamp_min(0)
        left, above, corner = anchors[r, back], anchors[up, c], anchors[up, back]
        vertical_edge = _near(corner, left, tolerance, distance)
        vertical_edge &= ~_near(corner, above, tolerance, distance)
        from_above = torch.where(r == 0, False, vertical_edge | (c == 0))
        predicted = torch.where(from_above[:, None], above, left)
        repeated[r, c] = near = _near(patches[r, c], predicted, tolerance, distance)
        anchors[r, c] = torch.where(near[:, None], predicted, patches[r, c])
    return repeated


def _near(
    a: Float[Tensor, "n d"], b: Float[Tensor, "n d"], tolerance: float, distance: Distance
) -> Bool[Tensor, "n"]:
    difference = a - b
    if distance == "max":
        return difference.abs().amax(-1) <= tolerance
    if distance == "mae":
        return difference.abs().mean(-1) <= tolerance
    return difference.pow(2).mean(-1).sqrt() <= tolerance
