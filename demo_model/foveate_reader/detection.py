"""Lines of text on an image: boxes from the detector's probabilities, in reading order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from foveate_reader.networks import Detector

SIDE = 736
"""Minimum of an image's shorter side in pixels, when it is searched: others are enlarged."""
LIMIT = 1920
"""Maximum of the longer side."""
_MULTIPLE = 32  # of both sides, in pixels
_CORE = 0.3  # probability above which a pixel belongs to the core of a line
_CERTAIN = 0.5  # mean probability below which a region is no text
_GROWTH = 1.6  # growth of a core to its line: this times area by circumference, on every side
_PADDING = 0.1  # of a line's height, added above and below for the encoder
_FLATTEST = 0.4  # of a region's height: minimum height of its line, if the page slopes
_LEAST = 3  # pixels of a core's shorter side
_LONG = 5  # ratio of a region's sides from which its slope counts
_LEVEL = 0.003  # slope below which a page is level
_SAME_ROW = 0.5  # of a box's height: overlap from which boxes stand in one row
_BELOW = 0.5  # of a box's width: overlap from which boxes of one height stand in two rows
_INSIDE = 0.8  # of a box's area: share inside a larger box from which it is a mark in its text


class Line(NamedTuple):
    """Box of a line of text on the image, in its pixels.

    A line that is not level falls by ``slope`` pixels for each pixel to the right; the box is that
    of its middle.
    """

    left: float
    top: float
    right: float
    bottom: float
    slope: float = 0.0

    @property
    def drop(self) -> float:
        """Height of the line's middle below where a level line through the image's corner runs."""
        return self.slope * (self.left + self.right) / 2


class Region(NamedTuple):
    """Connected pixels of text: their box and their slope."""

    left: int
    top: int
    right: int
    bottom: int
    slope: float = 0.0


def find_lines(detector: Detector, image: Image.Image) -> list[list[Line]]:
    """Return the boxes of an image's text, row by row from the top, each from the left."""
    searched = image.resize(_search_size(*image.size), Image.Resampling.BILINEAR)
    with torch.inference_mode():
        probability = detector(pixels_of(searched)[None])[0, 0]
    across, down = image.width / searched.width, image.height / searched.height
    found = regions(probability)
    slope = page_slope(found)
    lines = []
    for region in found:
        left, top, right, bottom, _ = line_of(region, slope)
        line = Line(
            max(0.0, left * across),
            max(0.0, top * down),
            min(float(image.width), right * across),
            min(float(image.height), bottom * down),
            slope * down / across,
        )
        lines.append(line)
    return rows_of(lines)


def line_of(region: Region, slope: float) -> Line:
    """Return the line of text whose core is a region of a page with this slope."""
    left, top, right, bottom, _ = region
    wide, middle = right - left, (top + bottom) / 2
    high = max(bottom - top - abs(slope) * wide, _FLATTEST * (bottom - top))
    grow = _GROWTH * wide * high / (2 * (wide + high))
    half = (high / 2 + grow) * (1 + 2 * _PADDING)
    return Line(left - grow, middle - half, right + grow, middle + half, slope)


def page_slope(found: Sequence[Region]) -> float:
    """Return the median slope of a page's long lines; 0 if it is negligible."""
    long = [r for r in found if r.right - r.left > _LONG * (r.bottom - r.top)]
    if not long:
        return 0.0
    slopes = np.array([region.slope for region in long])
    widths = np.array([region.right - region.left for region in long])
    order = slopes.argsort()
    middle = widths[order].cumsum().searchsorted(widths.sum() / 2)
    slope = float(slopes[order][middle])
    return slope if abs(slope) > _LEVEL else 0.0


def pixels_of(image: Image.Image) -> Float[Tensor, "3 h w"]:
    """Return pixels between -1 and 1 as the networks read them: blue, green, red."""
    array = np.asarray(image.convert("RGB"), dtype=np.float32)[..., ::-1]
    return torch.from_numpy(np.ascontiguousarray(array.transpose(2, 0, 1))) / 127.5 - 1


def _search_size(width: int, height: int) -> tuple[int, int]:
    scale = max(1.0, SIDE / min(width, height))
    scale = min(scale, LIMIT / max(width, height))
    wide, high = (
        max(_MULTIPLE, round(length * scale / _MULTIPLE) * _MULTIPLE) for length in (width, height)
    )
    return wide, high


def regions(probability: Float[Tensor, "h w"]) -> list[Region]:
    """Return every connected region that is certainly text."""
    core = (probability > _CORE).numpy()
    runs = _runs(core)
    if not len(runs):
        return []
    labels = _joined(runs)
    sums = np.concatenate([np.zeros((len(core), 1)), probability.double().numpy().cumsum(1)], 1)
    row, start, end = runs.T
    mass = sums[row, end] - sums[row, start]
    found = []
    for label in np.unique(labels):
        mine = labels == label
        box = start[mine].min(), row[mine].min(), end[mine].max(), row[mine].max() + 1
        certain = mass[mine].sum() / (end - start)[mine].sum() > _CERTAIN
        if certain and min(box[2] - box[0], box[3] - box[1]) >= _LEAST:
            left, top, right, bottom = map(int, box)
            found.append(Region(left, top, right, bottom, _slope(runs[mine])))
    return found


def _slope(runs: NDArray[np.intp]) -> float:
    """Return the slope of the line of least squares through all pixels of a region's runs."""
    row, start, end = runs.astype(np.float64).T
    count, x = end - start, (start + end) / 2
    x, y = x - np.average(x, weights=count), row - np.average(row, weights=count)
    spread = (count * (x**2 + count**2 / 12)).sum()
    return float((count * x * y).sum() / spread)


def _runs(core: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return row, start and end of every run of True in a row, row by row."""
    edges = np.diff(np.pad(core, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    row, start = np.nonzero(edges == 1)
    _, end = np.nonzero(edges == -1)
    return np.stack([row, start, end], 1)


def _joined(runs: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return for every run the number of its region: runs of neighbouring rows that touch."""
    parent = list(range(len(runs)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    above, rows = 0, runs.tolist()
    for i, (row, start, end) in enumerate(rows):
        while rows[above][0] < row - 1 or (rows[above][0] == row - 1 and rows[above][2] < start):
            above += 1
        for j in range(above, i):
            if rows[j][0] != row - 1 or rows[j][1] > end:
                break
            parent[root(j)] = root(i)
    return np.array([root(i) for i in range(len(rows))])


def rows_of(boxes: Sequence[Line]) -> list[list[Line]]:
    """Return boxes in rows from the top, each from the left, without marks inside other boxes.

    A box belongs to a row if it overlaps the mean of the row's boxes by half of the lower height,
    and none of them by half of the narrower width: lines that are set close are as high as that.
    """
    rows: list[list[Line]] = []
    outer = [box for box in boxes if not any(_inside(box, other) for other in boxes)]
    for box in sorted(outer, key=lambda box: box.top + box.bottom - 2 * box.drop):
        beside = rows and not any(_across(box, other) > _BELOW for other in rows[-1])
        if beside and _overlap(rows[-1], box) > _SAME_ROW:
            rows[-1].append(box)
        else:
            rows.append([box])
    return [sorted(row) for row in rows]


def _across(a: Line, b: Line) -> float:
    """Return the common width of two boxes as a share of the narrower one's."""
    return (min(a.right, b.right) - max(a.left, b.left)) / min(a.right - a.left, b.right - b.left)


def _inside(box: Line, other: Line) -> bool:
    """Return True if a box is inside a larger one, but for a small part."""
    wide, high = box.right - box.left, box.bottom - box.top
    if wide * high >= (other.right - other.left) * (other.bottom - other.top):
        return False
    across = min(box.right, other.right) - max(box.left, other.left)
    down = min(box.bottom, other.bottom) - max(box.top, other.top)
    return across > 0 and down > 0 and across * down > _INSIDE * wide * high


def _overlap(row: Sequence[Line], box: Line) -> float:
    """Return the common height of a row and a box as a share of the lower one's."""
    top = sum(other.top - other.drop for other in row) / len(row)
    bottom = sum(other.bottom - other.drop for other in row) / len(row)
    shared = min(bottom, box.bottom - box.drop) - max(top, box.top - box.drop)
    return shared / min(bottom - top, box.bottom - box.top)
