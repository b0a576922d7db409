"""Charts as SVG text for embedding in a page."""

from __future__ import annotations

import io
import warnings
from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

from foveate.compression.labels import named
from foveate.errors import MissingPackage
from foveate.pictures.escaping import without_folders
from foveate.pictures.strips import PALETTE
from foveate_lab.eval.summary import FULL, SummaryCell
from foveate_lab.report.front import on_front

MARKERS = "osD^vP*X<>hp"
FULL_CACHE = {"color": "#808080", "linestyle": "--", "marker": ""}
FRONT = {"color": "#808080", "linestyle": "-", "marker": ""}
_DASHES = {"-": "", "--": "14 7", ":": "3 5"}


class Entry(NamedTuple):
    """Entry of a chart's key: a name, and a sample of its line as SVG."""

    name: str
    sign: str


def style(index: int) -> dict[str, str]:
    """Return matplotlib's style of the method at an index."""
    return {
        "color": PALETTE[index % len(PALETTE)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": "-" if index < len(PALETTE) else ":",
    }


def entry(name: str, drawn: dict[str, str]) -> Entry:
    """Build the key entry of a line from its style."""
    color, dashes = drawn["color"], _DASHES[drawn["linestyle"]]
    line = f'<path d="M0 20H100" stroke="{color}" stroke-width="5" stroke-dasharray="{dashes}"/>'
    shape = f'<path d="{_outline(drawn["marker"])}" fill="{color}"/>' if drawn["marker"] else ""
    return Entry(name, f'<svg viewBox="0 0 100 40" aria-hidden="true">{line}{shape}</svg>')


def brief(specs: Sequence[str]) -> list[str]:
    """Return specs with as few folders in file names as keep them apart."""
    names = [without_folders(spec) for spec in specs]
    for folders in range(1, max((spec.count("/") for spec in specs), default=0) + 1):
        count = Counter(names)
        names = [
            without_folders(spec, folders) if count[name] > 1 else name
            for spec, name in zip(specs, names, strict=True)
        ]
    return names


def _outline(marker: str) -> str:
    from matplotlib.markers import MarkerStyle
    from matplotlib.transforms import Affine2D

    marker_style: Any = MarkerStyle(marker)
    transform = marker_style.get_transform() + Affine2D().scale(28, -28).translate(50, 20)
    (points,) = marker_style.get_path().to_polygons(transform)
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) + "Z"


TICKS = (1, 2, 3, 5, 7, 10, 15, 20, 33, 50, 70, 100)
WIDTH = 6.0  # inches
BLACK = "#000000"  # matplotlib's colour of axes and text


class Chart(NamedTuple):
    """Chart with the key of its lines."""

    svg: str
    key: list[Entry]


def against_bytes(cells: Sequence[SummaryCell], what: str) -> Chart:
    """Plot score against bytes, both in percent, with a line per method and the Pareto front.

    Vertical bars are intervals. If nothing was scored, the share of tokens equal to the full
    cache's replaces the score.
    """
    figure, axis = axes()
    top = 1.0
    lines: dict[str, list[SummaryCell]] = {}
    for cell in cells:
        if cell.spec != FULL:
            lines.setdefault(named(cell.spec).method, []).append(cell)
    key = [entry(name, style(index)) for index, name in enumerate(brief(list(lines)))]
    for index, line_cells in enumerate(lines.values()):
        line_cells = sorted(line_cells, key=lambda cell: cell.bytes_share)
        estimates = [cell.score or cell.agreement for cell in line_cells]
        x, y = [100 * c.bytes_share for c in line_cells], [100 * e.mean for e in estimates]
        below = [100 * (e.mean - e.low) for e in estimates]
        above = [100 * (e.high - e.mean) for e in estimates]
        top = max(top, *(e.high for e in estimates))
        axis.errorbar(
            x, y, yerr=(below, above), capsize=2, linewidth=1.4, markersize=5, **style(index)
        )
    for cell in cells:
        if cell.spec == FULL:
            full_score = (cell.score or cell.agreement).mean
            top = max(top, full_score)
            axis.axhline(100 * full_score, linewidth=1, **FULL_CACHE)
            key.append(entry("full cache", FULL_CACHE))
    if best := on_front(cells):
        _draw_front(axis, best)
        key.append(entry("Pareto front", FRONT))
    axis.set(
        xscale="log",
        xlabel="KV bytes, % of the full cache",
        ylabel=f"{what}, %",
        ylim=(0, 103 * top),
    )
    shares = [100 * cell.bytes_share for cell in cells if cell.spec != FULL]
    axis.set_xlim(0.9 * min(shares, default=1), 1.1 * max(shares, default=100))
    axis.set_xticks([x for x in TICKS if axis.get_xlim()[0] <= x <= axis.get_xlim()[1]])
    axis.xaxis.set_major_formatter("{x:g}")
    axis.tick_params(which="minor", bottom=False, labelbottom=False)
    return Chart(svg(figure), key)


def _draw_front(axis: Any, best: Sequence[SummaryCell]) -> None:
    """Draw the Pareto front as a broad line below the others."""
    worth = [100 * (cell.score or cell.agreement).mean for cell in best]
    shares = [100 * cell.bytes_share for cell in best]
    axis.plot(shares, worth, linewidth=7, alpha=0.4, zorder=0, **FRONT)


def axes(rows: int = 1, columns: int = 1, height: float = 0) -> tuple[Any, Any]:
    """Create a figure with its axes: one, or an array. ``height`` is in inches; 0 chooses it.

    Raises:
        MissingPackage: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackage("a report", "matplotlib", "report") from error
    height = height or (3.6 if rows == columns == 1 else WIDTH / columns * rows + 0.3)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    grid = figure.subplots(rows, columns)
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25, linewidth=0.6)
        axis.set_prop_cycle(color=PALETTE)
    return figure, grid


def svg(figure: Any) -> str:
    """Render the figure as SVG for embedding, without an XML declaration.

    Text stays text, never parsed as a formula, and takes the colour of the page's text, as axes do.
    """
    import matplotlib
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)
    out = io.StringIO()
    with (
        # text as text, and ids that are the same in every run
        matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "foveate"}),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing")  # the browser has other fonts
        figure.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
    drawn = out.getvalue()[out.getvalue().index("<svg") :]
    return drawn.replace("<svg ", '<svg fill="currentColor" ', 1).replace(BLACK, "currentColor")


def described(drawn: str, text: str) -> str:
    """Add an alternative text to a drawing."""
    return drawn.replace("<svg ", f'<svg role="img" aria-label="{escape(text)}" ', 1)
