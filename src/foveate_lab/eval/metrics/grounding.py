"""Boxes and points in answers, in the forms that models use.

An answer may have JSON (``bbox_2d``, ``point_2d``), a call (``click(start_box='(12,34)')``), tags
(``<box>``, ``<|box_start|>``, ``<point x= y=>``, ``<loc0123>``), brackets, names (``x1=``), or bare
numbers. A digit inside a word, as in ``bbox_2d`` or ``x1``, is not a coordinate.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

Scale = Literal["share", "percent", "thousand", "loc"]
"""Unit of coordinates: shares of 1, of 100, of 1000, or of PaliGemma's 1024."""
WHOLE: dict[str, float] = {"share": 1.0, "percent": 100.0, "thousand": 1000.0, "loc": 1024.0}

_NUMBER = r"(?<![\w.])-?(?:\d+(?:\.\d+)?|\.\d+)(?![\d_])(?!\.\d)(?=px|%|[^A-Za-z]|$)"
_LOC = re.compile(r"<loc(\d{4})>")
_ATTRIBUTES = re.compile(rf"<points?\s[^>]*?\bx1?=[\"']({_NUMBER})[\"']\s+y1?=[\"']({_NUMBER})")
_TAGS = re.compile(
    r"<\|?(?P<tag>(?:box|bbox|point|points)(?:_start)?)\|?>(.*?)(?=<\|?/?[a-z_]*(?:box|point)|$)",
    re.DOTALL,
)
_KEYS = re.compile(
    r"[\"'](?:bbox_2d|bbox|box_2d|box|point_2d|point|coordinates?|position|click_point)[\"']"
    r"\s*:\s*(?=[\[(\"'])|(?:start_box|start_point|coordinate|point)\s*=\s*(?=[\[(\"'])"
)
_CORNERS = (
    ("x1", "y1", "x2", "y2"),
    ("xmin", "ymin", "xmax", "ymax"),
    ("left", "top", "right", "bottom"),
)
_GROUP = re.compile(r"[\[(]([^\[\]()]*)[\])]")


class Found(NamedTuple):
    """Point, or box (left, top, right, bottom), with the unit of its numbers; None if unknown."""

    numbers: tuple[float, ...]
    scale: Scale | None

    @property
    def centre(self) -> tuple[float, float]:
        """Point itself, or the middle of the box."""
        if len(self.numbers) == 2:
            return self.numbers[0], self.numbers[1]
        left, top, right, bottom = self.numbers
        return (left + right) / 2, (top + bottom) / 2


def located(answer: str) -> Found | None:
    """Return the first box or point of an answer, or None."""
    return next((box for box in _forms(answer) if box), None)


def _forms(answer: str) -> Iterator[Found | None]:
    """Yield the finds of each form, from the most explicit notation to bare numbers."""
    if len(loc := _LOC.findall(answer)) >= 4:
        top, left, bottom, right = map(float, loc[:4])
        yield Found((left, top, right, bottom), "loc")
    if attributes := _ATTRIBUTES.search(answer):
        yield Found((float(attributes[1]), float(attributes[2])), "percent")
    for tag in _TAGS.finditer(answer):
        yield _first(tag[2], "thousand")
    for key in _KEYS.finditer(answer):
        yield _in_brackets(answer[key.end() :]) or _first(answer[key.end() :].split("}")[0])
    yield from (_named(answer, names) for names in _CORNERS)
    if corner := _named(answer, ("x", "y", "width", "height")):
        left, top, wide, high = corner.numbers
        yield Found((left, top, left + wide, top + high), corner.scale)
    yield _named(answer, ("x", "y"))
    yield _in_brackets(answer)
    yield _first(answer)


def _named(answer: str, names: Sequence[str]) -> Found | None:
    """Find numbers that each have a name: x1=12, "y1": 34."""
    matches = [
        re.search(rf"(?<![A-Za-z0-9_]){name}[\"']?\s*[:=]\s*[\"']?({_NUMBER}%?)", answer)
        for name in names
    ]
    values = [match[1] for match in matches if match]
    return _found(values) if len(values) == len(names) else None


def _in_brackets(answer: str) -> Found | None:
    """Find the first brackets with four or two numbers. Two adjacent pairs make a box."""
    groups = list(_GROUP.finditer(answer))
    for index, group in enumerate(groups):
        numbers = _numbers(group[1])
        if len(numbers) == 2 and index + 1 < len(groups):
            after = groups[index + 1]
            between = answer[group.end() : after.start()]
            if re.fullmatch(r"\s*(?:,|to|-)?\s*", between) and len(_numbers(after[1])) == 2:
                return _found([*numbers, *_numbers(after[1])])
        if len(numbers) in (2, 4):
            return _found(numbers)
    return None


def _first(text: str, scale: Scale | None = None) -> Found | None:
    """Find the first four numbers, or the first two if there are fewer than four."""
    numbers = _numbers(text)
    if len(numbers) < 2:
        return None
    return _found(numbers[: 4 if len(numbers) >= 4 else 2], scale)


def _numbers(text: str) -> list[str]:
    return re.findall(rf"{_NUMBER}%?", text)


def _found(numbers: Sequence[str], scale: Scale | None = None) -> Found:
    values = tuple(float(number.rstrip("%")) for number in numbers)
    if all(number.endswith("%") for number in numbers):
        return Found(values, "percent")
    if all(0 <= value <= 1 for value in values):
        return Found(values, "share")
    return Found(values, scale)
