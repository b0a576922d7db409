"""Figures that the papers print: a file of tab-separated values for each table."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from foveate.errors import InvalidInput
from foveate_lab.reproduce.tables.table import TableCell

NOTHING = "-"  # the paper's table has no cell there
WORDS = (NOTHING, "OOM")


class Misprint(NamedTuple):
    """A sentence on what is wrong with a printed number, and how it should be; ``delta`` is the
    printed gain, where it is the gain that is wrong.
    """

    text: str
    delta: str = ""


class Printed(NamedTuple):
    """A line of a paper's table: its line in the text, and values by column; ``texts`` as printed,
    with words such as OOM.
    """

    source: str
    values: dict[str, float]
    texts: Mapping[str, str] = {}
    misprints: Mapping[str, Misprint] = {}

    def cell(self, column: str, cell: TableCell) -> TableCell:
        """Return a measured cell with the paper's number of that column."""
        misprint = self.misprints.get(column, Misprint(""))
        return cell._replace(
            paper=self.values.get(column),
            printed=self.texts.get(column, ""),
            misprint=misprint.text,
            delta=misprint.delta,
        )


Key = tuple[str, str, str]
"""Model, method and budget of a line."""
BLANK = Printed("", {})


@cache
def printed(name: str) -> dict[Key, Printed]:
    """Read a table of figures; an empty name, where the paper prints no numbers, gives none.

    Raises:
        InvalidInput: the installation lacks the file.
    """
    if not name:
        return {}
    columns, lines = _read(name)
    known, cells = _misprints(), {}
    for source, model, method, budget, *values in lines:
        texts = dict(zip(columns[4:], values, strict=True))
        numbers = {column: float(text) for column, text in texts.items() if text not in WORDS}
        cells[model, method, budget] = Printed(
            source,
            numbers,
            {column: text for column, text in texts.items() if text != NOTHING},
            known.get((name, model, method, budget), {}),
        )
    return cells


@cache
def _misprints() -> dict[tuple[str, str, str, str], dict[str, Misprint]]:
    """Read the misprints: by table, model, method and budget, and then by column."""
    misprints: dict[tuple[str, str, str, str], dict[str, Misprint]] = {}
    for table, model, method, budget, column, delta, text in _read("misprints")[1]:
        mine = misprints.setdefault((table, model, method, budget), {})
        for name in column.split(", "):
            mine[name] = Misprint(text, delta)
    return misprints


def _read(name: str) -> tuple[list[str], list[list[str]]]:
    """Return the names of a file's columns, and its lines."""
    path = files("foveate_lab.reproduce").joinpath("figures", f"{name}.tsv")
    if not path.is_file():
        raise InvalidInput(
            f"{path} is missing: it holds the paper's figures of {name!r}. Install foveate anew, "
            "or give the name of a file that is there."
        )
    head, *lines = path.read_text("utf-8").splitlines()
    return head.split("\t"), [line.split("\t") for line in lines]
