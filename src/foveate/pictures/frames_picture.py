"""Picture of the frames that are left of a stream: each with its time and its kept share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Float
from PIL import Image
from torch import Tensor

from foveate.models.token_grids import ImageTokens
from foveate.pictures.kept_picture import fit, legend, lit
from foveate.pictures.strips import FAINT, GAP, beside, stacked, text_strip
from foveate.pictures.views import View, views_of

_IN_A_ROW = 4
_WIDE = 916  # pixels of a row


class DrawnFrame(NamedTuple):
    """Frame with its caption, its visual tokens (None: unknown cells) and each token's share of KV
    heads that store it.
    """

    caption: str
    image: Image.Image
    tokens: ImageTokens | None
    share: Float[Tensor, "t"]


def frames_picture(title: str, subtitle: str, frames: Sequence[DrawnFrame]) -> Image.Image:
    """Draw frames in rows, with fog over patches that few heads store, and a legend."""
    strips = [(0, text_strip(title, 18, _WIDE)), (2, text_strip(subtitle, 14, _WIDE, FAINT))]
    limit = (_WIDE + GAP) // _IN_A_ROW - GAP
    views = []
    for start in range(0, len(frames), _IN_A_ROW):
        panels, captions = [], []
        for frame in frames[start : start + _IN_A_ROW]:
            tokens = None if frame.tokens is None else [frame.tokens]
            view = views_of([frame.image], tokens)[0]
            size = fit(view, limit)
            panels.append(_panel(view, frame.share, size))
            captions.append(text_strip(frame.caption, 12, size[0], FAINT))
            views.append(view)
        strips += [(12, beside(panels, _WIDE)), (3, beside(captions, _WIDE))]
    return stacked([*strips, *legend(views, _WIDE)], _WIDE, margin=22)


def _panel(view: View, share: Float[Tensor, "t"], size: tuple[int, int]) -> Image.Image:
    if not view.grids:
        return view.image.convert("RGB").resize(size)
    return lit(view.image, view.grids, share, size)
