"""Picture of kept patches: images with fog over patches whose tokens were dropped.

Parts of an image that the model never saw are hatched.
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
_DIMMEST = 0.3  # share of the image that shows through full fog, so that it stays readable
_CURVE = 0.5  # exponent below 1: a tenth of the heads makes a visible difference


def canvas(image: Image.Image, grid: Grid | None) -> Box:
    """Return the box around the image and its grid, in the image's pixels."""
    if grid is None:
        return 0, 0, *image.size
    left, top, right, bottom = grid.on(image.size)
    return min(left, 0), min(top, 0), max(right, image.width), max(bottom, image.height)


def lit(
    image: Image.Image,
    grid: Grid,
    share: Float[Tensor, "t"],
    size: tuple[int, int],
    computed: Bool[Tensor, "t"] | None = None,
) -> Image.Image:
    """Draw an image and its padding with fog over dropped patches.

    Args:
        image: the image.
        grid: its grid of tokens.
        share: the share of heads that keep each token of the prompt; the fewer, the more fog.
        size: width and height of the result in pixels.
        computed: True for tokens that all layers computed; the patches of others are crossed.

    Returns:
        The drawing; pixels in no cell are hatched.
    """
    box = canvas(image, grid)
    pixels = np.asarray(part_of(image, box, size)).astype(np.float64)
    left, top, right, bottom = grid.on(image.size)
    rows = _cells(size[1], box[1], box[3], top, bottom, grid.rows)
    columns = _cells(size[0], box[0], box[2], left, right, grid.columns)
    kept_share = share[list(grid.indices)].view(grid.rows, grid.columns).clamp(0, 1).cpu().numpy()
    clear = _DIMMEST + (1 - _DIMMEST) * kept_share[rows.clip(0)[:, None], columns.clip(0)] ** _CURVE
    fogged = _FOG + (pixels - _FOG) * clear[..., None]
    if computed is not None:
        is_computed = computed[list(grid.indices)].view(grid.rows, grid.columns).cpu().numpy()
        fogged = _cross_out(fogged, ~is_computed[rows.clip(0)[:, None], columns.clip(0)])
    unseen = (rows < 0)[:, None] | (columns < 0)
    return Image.fromarray(np.where(unseen[..., None], _hatch(pixels), fogged).astype(np.uint8))


def _cells(
    length: int, start: Number, end: Number, first: Number, last: Number, cells: int
) -> NDArray[np.intp]:
    """Return for each of ``length`` pixels from start to end the cell of its centre; -1: none."""
    middles = start + (np.arange(length) + 0.5) * (end - start) / length
    cells_of = np.floor((middles - first) / (last - first) * cells).astype(np.intp)
    return np.where((cells_of < 0) | (cells_of >= cells), -1, cells_of)


def _cross_out(pixels: NDArray[np.float64], mask: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Darken the pixels along crossed lines where ``mask`` is True."""
    down, across = (np.arange(length) for length in pixels.shape[:2])
    lines = ((down[:, None] + across) % 11 < 2) | ((down[:, None] - across) % 11 < 2)
    return np.asarray(np.where((mask & lines)[..., None], 0.45 * pixels, pixels))


def _hatch(pixels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the pixels pale, grey and hatched."""
    pale = np.asarray(_HATCH) + 0.25 * (pixels.mean(-1, keepdims=True) - np.asarray(_HATCH))
    down, across = (np.arange(length) for length in pixels.shape[:2])
    lines = (down[:, None] + across) % 9 < 2
    return np.asarray(np.where(lines[..., None], 0.72 * pale, pale), dtype=np.float64)


_WIDE = 916  # width of a row of images in pixels, unless they need more
_LEAST, _MOST = 180, 420  # pixels of an image: minimum width; maximum width and height
_STEPS = (0, 10, 25, 50, 100)  # percent, in the legend
_HAIR = 0.01  # share of an image's length that is invisible
_HELD = "Share of the KV heads, over all layers, that keep the token of a patch."
_DROPPED = (
    "Crossed: not computed, because it was pruned before some layer. Fog without a cross: computed "
    "by all layers, and evicted by the heads that do not keep it. Clear: kept."
)
_CUT = "Hatched: the processor crops it, and no token sees it."
_PADDED = "Grey around an image: the processor adds it, and tokens see it."


def kept_picture(
    images: Sequence[Image.Image],
    tokens: Sequence[ImageTokens] | None,
    rows: Sequence[tuple[str, str, Float[Tensor, "t"]]],
    note: str = "",
    computed: Sequence[Bool[Tensor, "t"]] | None = None,
    times: Sequence[float] = (),
) -> Image.Image:
    """Draw a row of images for every method, and a legend.

    An image that the model sees both complete and in tiles is drawn twice.

    Args:
        images: the prompt's images.
        tokens: the tokens of each image and their cells; None if unknown: images have no fog then.
        rows: for each method a title, a second line, and the share of heads that keep each token of
            the prompt, from 0 (fog) to 1 (clear). Lines wider than the page are wrapped.
        note: a sentence above the legend.
        computed: for each row, True for tokens that all layers computed; the patches of others are
            crossed.
        times: the first images are frames of a video at these times, in seconds.
    """
    views = views_of(images, tokens, times)
    limit = max(_LEAST, min(_MOST, (_WIDE + GAP) // max(1, len(views)) - GAP))
    sizes = [fit(view, limit) for view in views]
    page_width = max(_WIDE, sum(width + GAP for width, _ in sizes) - GAP)
    names = [text_strip(_name(v), 12, size[0], FAINT) for v, size in zip(views, sizes, strict=True)]
    strips: list[tuple[int, Image.Image]] = []
    masks: Sequence[Tensor | None] = computed or [None] * len(rows)
    for (title, subtitle, share), mask in zip(rows, masks, strict=True):
        panels = [
            _draw_panel(view, share, mask, size) for view, size in zip(views, sizes, strict=True)
        ]
        strips += [
            (28 if strips else 0, text_strip(title, 18, page_width)),
            (2, text_strip(subtitle, 14, page_width, FAINT)),
            (8, beside(panels, page_width)),
            (3, beside(names, page_width)),
        ]
    notes = [(20, text_strip(note, 14, page_width, max_lines=6))] if note else []
    dropped = any(mask is not None and not bool(mask.all()) for mask in masks)
    return stacked([*strips, *notes, *legend(views, page_width, dropped)], page_width, margin=22)


def fit(view: View, limit: int) -> tuple[int, int]:
    """Return the size of a view on the page, in pixels."""
    left, top, right, bottom = canvas(view.image, view.grid)
    scale = min(limit / (right - left), _MOST / (bottom - top))
    return max(1, round((right - left) * scale)), max(1, round((bottom - top) * scale))


def _name(view: View) -> str:
    cells = f", {view.grid.rows} x {view.grid.columns} patches" if view.grid else ""
    return f"{view.name}{cells}"


def _draw_panel(
    view: View, share: Float[Tensor, "t"], computed: Bool[Tensor, "t"] | None, size: tuple[int, int]
) -> Image.Image:
    if view.grid is None:
        return view.image.convert("RGB").resize(size)
    return lit(view.image, view.grid, share, size, computed)


def legend(
    views: Sequence[View], wide: int, dropped: bool = False
) -> list[tuple[int, Image.Image]]:
    """Return the strips of the legend, with the notes that apply to these views."""
    if all(view.grid is None for view in views):
        return []
    around = [_overhang(view) for view in views if view.grid]
    cut, padded = min(map(min, around)) < -_HAIR, max(map(max, around)) > _HAIR
    notes = ((_HELD, True), (_DROPPED, dropped), (_CUT, cut), (_PADDED, padded))
    lines = [note for note, is_there in notes if is_there]
    return [
        (22, beside([*map(_draw_sample, _STEPS), *([_draw_crossed()] if dropped else [])], wide)),
        *((5 if i == 0 else 1, text_strip(line, 13, wide, FAINT)) for i, line in enumerate(lines)),
    ]


def _overhang(view: View) -> tuple[float, ...]:
    """Return the grid's overhang at each edge, as a share of the image; negative: it is cropped."""
    left, top, right, bottom = view.grid.on(view.image.size) if view.grid else (0, 0, 0, 0)
    wide, high = view.image.size
    return -left / wide, -top / high, right / wide - 1, bottom / high - 1


def _draw_sample(percent: int) -> Image.Image:
    """Draw a patch that ``percent`` of the heads keep, half of it on white, half on black."""
    image = _black_and_white(96)
    for x, ink in ((24, "black"), (72, "white")):
        _write(image, (x, 17), f"{percent} %", ink, "mm")
    return _draw_patch(image, percent / 100)


def _draw_crossed() -> Image.Image:
    """Draw a patch that was not computed, with its label."""
    patch = _draw_patch(_black_and_white(96), 0.0, computed=False)
    image = Image.new("RGB", (96 + 112, 34), PAPER)
    image.paste(patch, (0, 0))
    _write(image, (106, 17), "not computed", "black", "lm")
    return image


def _write(image: Image.Image, at: tuple[int, int], text: str, ink: str, anchor: str) -> None:
    font = ImageFont.load_default(15)
    ImageDraw.Draw(image).text(at, text, fill=ink, font=font, anchor=anchor)


def _black_and_white(wide: int) -> Image.Image:
    image = Image.new("RGB", (wide, 34), "white")
    image.paste("black", (wide // 2, 0, wide, 34))
    return image


def _draw_patch(image: Image.Image, kept_share: float, computed: bool = True) -> Image.Image:
    share = torch.full((1,), kept_share, dtype=torch.float32, device="cpu")
    mask = torch.tensor([computed], dtype=torch.bool, device="cpu")
    return lit(image, Grid(1, 1, (0,)), share, image.size, mask)
