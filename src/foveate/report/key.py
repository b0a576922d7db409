"""What the lines of a chart stand for: names beside it, which are text of the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from foveate.report.shown import without_folders

MARKERS = "osD^vP*X<>hp"
PALETTE = ("#2f7ed8", "#d9650b", "#2e9a4b", "#dc4340", "#9a63d8",
           "#a8714a", "#d1549f", "#808080", "#8c8a1c", "#1795a8")  # fmt: skip  # on black and white
FULL_CACHE = {"color": "#808080", "linestyle": "--", "marker": ""}
_DASHES = {"-": "", "--": "14 7", ":": "3 5"}


class Entry(NamedTuple):
    """A line of a chart: its name, and a piece of it as SVG."""

    name: str
    sign: str


def style(place: int) -> dict[str, str]:
    """How the line of the method at that place is drawn, as matplotlib is told."""
    return {
        "color": PALETTE[place % len(PALETTE)],
        "marker": MARKERS[place % len(MARKERS)],
        "linestyle": "-" if place < len(PALETTE) else ":",
    }


def entry(name: str, drawn: dict[str, str]) -> Entry:
    """The entry of a line that is drawn like that."""
    color, dashes = drawn["color"], _DASHES[drawn["linestyle"]]
    line = f'<path d="M0 20H100" stroke="{color}" stroke-width="5" stroke-dasharray="{dashes}"/>'
    shape = f'<path d="{_outline(drawn["marker"])}" fill="{color}"/>' if drawn["marker"] else ""
    return Entry(name, f'<svg viewBox="0 0 100 40" aria-hidden="true">{line}{shape}</svg>')


def brief(specs: Sequence[str]) -> list[str]:
    """Policies whose files are named without their folders, but for those that are then alike."""
    names = [without_folders(spec) for spec in specs]
    count = Counter(names)
    return [spec if count[name] > 1 else name for spec, name in zip(specs, names, strict=True)]


def _outline(marker: str) -> str:
    from matplotlib.markers import MarkerStyle
    from matplotlib.transforms import Affine2D

    made: Any = MarkerStyle(marker)
    place = made.get_transform() + Affine2D().scale(28, -28).translate(50, 20)
    (points,) = made.get_path().to_polygons(place)
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) + "Z"
