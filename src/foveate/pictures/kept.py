"""A picture of what was kept: the images, in fog where no head holds their tokens any more, hatched
where the model never saw them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from foveate.models.token_grids import Box, Grid, ImageTokens, Number
from foveate.pictures.strips import FAINT, GAP, PAPER, beside, stacked, text_strip
from foveate.pictures.views import View, part_of, views_of

_FOG, _HATCH = (120, 128, 148), (236, 236, 232)
_DIMMEST = 0.3  # of an image shows through where no head holds its token: it can still be read
_CURVE = 0.5  # below 1, so that a tenth of the heads makes a difference that can be seen


def canvas(image: Image.Image, grid: Grid | None) -> Box:
    """The image and all that its grid sees, in the image's pixels."""
    if grid is None:
        return 0, 0, *image.size
    left, top, right, bottom = grid.on(image.size)
    return min(left, 0), min(top, 0), max(right, image.width), max(bottom, image.height)


def lit(
    image: Image.Image,
    grid: Grid,
    share: Float[Tensor, "t"],
    size: tuple[int, int],
    whole: Bool[Tensor, "t"] | None = None,
) -> Image.Image:
    """The image, at a size in pixels, and what a processor puts around it: cell by cell as clear as
    the share of heads that hold the cell's token, crossed where that is none of ``whole``, and
    hatched where it is under no cell.
    """
    box = canvas(image, grid)
    pixels = np.asarray(part_of(image, box, size)).astype(np.float64)
    left, top, right, bottom = grid.on(image.size)
    rows = _cells(size[1], box[1], box[3], top, bottom, grid.rows)
    columns = _cells(size[0], box[0], box[2], left, right, grid.columns)
    held = share[list(grid.indices)].view(grid.rows, grid.columns).clamp(0, 1).cpu().numpy()
    clear = _DIMMEST + (1 - _DIMMEST) * held[rows.clip(0)[:, None], columns.clip(0)] ** _CURVE
    foggy = _FOG + (pixels - _FOG) * clear[..., None]
    if whole is not None:
        computed = whole[list(grid.indices)].view(grid.rows, grid.columns).cpu().numpy()
        foggy = _with_crosses(foggy, ~computed[rows.clip(0)[:, None], columns.clip(0)])
    unseen = (rows < 0)[:, None] | (columns < 0)
    return Image.fromarray(np.where(unseen[..., None], _hatched(pixels), foggy).astype(np.uint8))


def _cells(
    length: int, start: Number, end: Number, first: Number, last: Number, cells: int
) -> NDArray[np.intp]:
    """For each of so many pixels from start to end, in which cell its middle lies; -1 in none."""
    middles = start + (np.arange(length) + 0.5) * (end - start) / length
    cells_of = np.floor((middles - first) / (last - first) * cells).astype(np.intp)
    return np.where((cells_of < 0) | (cells_of >= cells), -1, cells_of)


def _with_crosses(pixels: NDArray[np.float64], where: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Darker along two sets of lines."""
    down, across = (np.arange(length) for length in pixels.shape[:2])
    lines = ((down[:, None] + across) % 11 < 2) | ((down[:, None] - across) % 11 < 2)
    return np.asarray(np.where((where & lines)[..., None], 0.45 * pixels, pixels))


def _hatched(pixels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Grey, pale, and crossed by thin lines."""
    pale = np.asarray(_HATCH) + 0.25 * (pixels.mean(-1, keepdims=True) - np.asarray(_HATCH))
    down, across = (np.arange(length) for length in pixels.shape[:2])
    lines = (down[:, None] + across) % 9 < 2
    return np.asarray(np.where(lines[..., None], 0.72 * pale, pale), dtype=np.float64)


_WIDE = 916  # pixels of all images beside each other, where they fit
_LEAST, _MOST = 180, 420  # of one: its width, and at most its height
_STEPS = (0, 10, 25, 50, 100)  # percent, in the legend
_HAIR = 0.01  # of an image's length: less is not seen
_HELD = "How many of the KV heads, over all layers, still hold the token of a patch."
_DROPPED = (
    "Crossed: not computed, as it was dropped before some layer. In fog without a cross: computed "
    "by all layers, and evicted by the heads that do not hold it. Clear: kept."
)
_CUT = "Hatched: the processor cuts it off, and no token sees it."
_PADDED = "Grey around an image: the processor adds it, and tokens see it."


def kept_picture(
    images: Sequence[Image.Image],
    tokens: Sequence[ImageTokens] | None,
    rows: Sequence[tuple[str, str, Float[Tensor, "t"]]],
    note: str = "",
    whole: Sequence[Bool[Tensor, "t"]] | None = None,
) -> Image.Image:
    """Draws one row of images for every method, and a legend below. An image that the model sees
    whole and in tiles is there twice.

    Args:
        images: of the prompt.
        tokens: where their tokens stand, one for each image; None where that is not known, which
            leaves the images as they are.
        rows: title, second line, and the share of heads that hold each token of the prompt, from
            0 (fog) to 1 (as in the image). Lines wider than the page are broken.
        note: a sentence that stands above the legend.
        whole: of each row, which tokens all layers computed; the patches of others are crossed.
    """
    views = views_of(images, tokens)
    most = max(_LEAST, min(_MOST, (_WIDE + GAP) // max(1, len(views)) - GAP))
    sizes = [_fit(view, most) for view in views]
    wide = max(_WIDE, sum(width + GAP for width, _ in sizes) - GAP)
    names = [text_strip(_name(v), 12, size[0], FAINT) for v, size in zip(views, sizes, strict=True)]
    strips: list[tuple[int, Image.Image]] = []
    computed: Sequence[Tensor | None] = whole or [None] * len(rows)
    for (title, words, share), known in zip(rows, computed, strict=True):
        panels = [_panel(view, share, known, size) for view, size in zip(views, sizes, strict=True)]
        strips += [
            (28 if strips else 0, text_strip(title, 18, wide)),
            (2, text_strip(words, 14, wide, FAINT)),
            (8, beside(panels, wide)),
            (3, beside(names, wide)),
        ]
    said = [(20, text_strip(note, 14, wide, most=6))] if note else []
    dropped = any(known is not None and not bool(known.all()) for known in computed)
    return stacked([*strips, *said, *_legend(views, wide, dropped)], wide, margin=22)


def _fit(view: View, most: int) -> tuple[int, int]:
    """The size at which a view stands on the page, in pixels."""
    left, top, right, bottom = canvas(view.image, view.grid)
    scale = min(most / (right - left), _MOST / (bottom - top))
    return max(1, round((right - left) * scale)), max(1, round((bottom - top) * scale))


def _name(view: View) -> str:
    cells = f", {view.grid.rows} x {view.grid.columns} patches" if view.grid else ""
    return f"{view.name}{cells}"


def _panel(
    view: View, share: Float[Tensor, "t"], whole: Bool[Tensor, "t"] | None, size: tuple[int, int]
) -> Image.Image:
    if view.grid is None:
        return view.image.convert("RGB").resize(size)
    return lit(view.image, view.grid, share, size, whole)


def _legend(views: Sequence[View], wide: int, dropped: bool) -> list[tuple[int, Image.Image]]:
    """How clear a patch is at which share, and what else there is on these views."""
    if all(view.grid is None for view in views):
        return []
    around = [_around(view) for view in views if view.grid]
    cut, padded = min(map(min, around)) < -_HAIR, max(map(max, around)) > _HAIR
    notes = ((_HELD, True), (_DROPPED, dropped), (_CUT, cut), (_PADDED, padded))
    lines = [note for note, is_there in notes if is_there]
    return [
        (22, beside([*map(_sample, _STEPS), *([_crossed()] if dropped else [])], wide)),
        *((5 if i == 0 else 1, text_strip(line, 13, wide, FAINT)) for i, line in enumerate(lines)),
    ]


def _around(view: View) -> tuple[float, ...]:
    """By what share of the image its grid reaches beyond each edge, or (below 0) ends before it."""
    left, top, right, bottom = view.grid.on(view.image.size) if view.grid else (0, 0, 0, 0)
    wide, high = view.image.size
    return -left / wide, -top / high, right / wide - 1, bottom / high - 1


def _sample(percent: int) -> Image.Image:
    """A patch, a share of whose heads hold it: black on white beside white on black."""
    image = _halves(96)
    for x, ink in ((24, "black"), (72, "white")):
        _write(image, (x, 17), f"{percent} %", ink, "mm")
    return _patch(image, percent / 100)


def _crossed() -> Image.Image:
    """One that was not computed, with its name beside it."""
    patch = _patch(_halves(96), 0.0, computed=False)
    image = Image.new("RGB", (96 + 112, 34), PAPER)
    image.paste(patch, (0, 0))
    _write(image, (106, 17), "not computed", "black", "lm")
    return image


def _write(image: Image.Image, at: tuple[int, int], text: str, ink: str, anchor: str) -> None:
    font = ImageFont.load_default(15)
    ImageDraw.Draw(image).text(at, text, fill=ink, font=font, anchor=anchor)


def _halves(wide: int) -> Image.Image:
    image = Image.new("RGB", (wide, 34), "white")
    image.paste("black", (wide // 2, 0, wide, 34))
    return image


def _patch(image: Image.Image, held: float, computed: bool = True) -> Image.Image:
    share = torch.full((1,), held, dtype=torch.float32, device="cpu")
    whole = torch.tensor([computed], dtype=torch.bool, device="cpu")
    return lit(image, Grid(1, 1, (0,)), share, image.size, whole)
