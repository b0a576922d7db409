"""SVG parts that show kept pairs: an image with darkened cells, bars per head, and labels.

Colors are readable on light and on dark pages.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence

from PIL import Image
from torch import Tensor

from foveate.models.token_grids import Grid
from foveate.pictures.strips import PALETTE

BLUE, GREY, NIGHT = PALETTE[0], "#808080", "#0e111b"
LEVELS = 10  # of brightness
DARKEST = 0.88  # below 1: the image stays visible where no head keeps a token


def shade(grid: Grid, share: Tensor, box: tuple[float, float, float, float]) -> Iterator[str]:
    """Yield paths that darken an image at ``box`` (left, top, width, height), one per brightness.

    ``share`` [tokens] is the share of heads that keep a token: the lower, the darker its cell.
    """
    left, top, width, height = box
    across, down = width / grid.columns, height / grid.rows
    cells: dict[int, list[str]] = {}
    for cell, token in enumerate(grid.indices):
        level = round((1 - float(share[token])) * LEVELS)
        row, column = divmod(cell, grid.columns)
        corner = f"M{left + column * across:g} {top + row * down:g}"
        cells.setdefault(level, []).append(f"{corner}h{across:g}v{down:g}h-{across:g}z")
    for level, paths in sorted(cells.items()):
        if level:
            opacity = DARKEST * level / LEVELS
            yield f'<path fill="{NIGHT}" fill-opacity="{opacity:.2f}" d="{"".join(paths)}"/>'


def bars(heads: Tensor, box: tuple[float, float, float, float], mean: float) -> Iterator[str]:
    """Draw a bar per KV head, layer by layer, as high as the share of the prompt that it keeps.

    ``heads`` is [layers, heads]; a dashed line marks ``mean``.
    """
    left, top, width, height = box
    step = width / len(heads)
    thick = 0.8 * step / heads.shape[1]
    drawn = []
    for layer, shares in enumerate(heads.tolist()):
        for head, share in enumerate(shares):
            x = left + layer * step + 0.1 * step + head * thick
            high = share * height
            drawn.append(f"M{x:.1f} {top + height - high:.1f}h{thick:.2f}v{high:.1f}h-{thick:.2f}z")
    yield f'<path fill="{GREY}" fill-opacity=".15" d="M{left} {top}h{width}v{height}h-{width}z"/>'
    yield f'<path fill="{BLUE}" d="{"".join(drawn)}"/>'
    y = top + height * (1 - mean)
    yield f'<path stroke="{GREY}" stroke-dasharray="4 3" d="M{left} {y:.1f}h{width}"/>'


def label(x: float, y: float, text: str, *, size: int = 12, anchor: str = "start") -> str:
    """Return a line of text in the color of the picture around it."""
    safe = text.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}">{safe}</text>'


def svg(title: str, width: float, height: float, parts: Sequence[str]) -> str:
    """Return a complete picture, for a file or inside a page."""
    safe = title.replace("&", "&amp;").replace("<", "&lt;")
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
            f'role="img" font-family="sans-serif" fill="{GREY}">',
            f"<title>{safe}</title>",
            *parts,
            "</svg>",
        ]
    )


def jpeg(image: Image.Image) -> bytes:
    """Encode an image as a small JPEG."""
    out = io.BytesIO()
    image.convert("RGB").save(out, "JPEG", quality=55, optimize=True)
    return out.getvalue()


def dots(kept: Tensor) -> bytes:
    """Encode kept pairs as a transparent PNG with a blue pixel for each.

    ``kept`` [rows, tokens] consists of zeros and ones; a row is a KV head, layer by layer.
    """
    drawn = Image.fromarray((kept > 0).byte().numpy(), mode="P")
    drawn.putpalette([0, 0, 0, *bytes.fromhex(BLUE[1:])])
    out = io.BytesIO()
    drawn.save(out, "PNG", transparency=0, optimize=True)
    return out.getvalue()


def data_uri(data: bytes, kind: str) -> str:
    """Return a data URI of an image; ``kind`` is "jpeg" or "png"."""
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"
