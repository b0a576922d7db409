"""The papers' figures: one file of tab-separated values a table, with the line of the text."""

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
    """What is known to be wrong with a printed number, and the number as it would be; ``delta`` is
    the gain that the paper prints there, where it is the gain that is wrong.
    """

    said: str
    delta: str = ""


class Printed(NamedTuple):
    """A line of a paper's table: where it stands, and its values by column; ``texts`` as they are
    printed, words among them.
    """

    source: str
    values: dict[str, float]
    texts: Mapping[str, str] = {}
    misprints: Mapping[str, Misprint] = {}

    def cell(self, column: str, cell: TableCell) -> TableCell:
        """A measured cell beside what the paper says in that column."""
        misprint = self.misprints.get(column, Misprint(""))
        return cell._replace(
            paper=self.values.get(column),
            printed=self.texts.get(column, ""),
            misprint=misprint.said,
            delta=misprint.delta,
        )


Key = tuple[str, str, str]
"""Model, method, budget."""
BLANK = Printed("", {})


@cache
def printed(name: str) -> dict[Key, Printed]:
    """The table of that name; of none ("") nothing, where the paper prints no numbers.

    Raises:
        InvalidInput: there is no file of that name: the installation lacks it.
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
    """By table, model, method and budget, and then by column."""
    misprints: dict[tuple[str, str, str, str], dict[str, Misprint]] = {}
    for table, model, method, budget, column, delta, said in _read("misprints")[1]:
        mine = misprints.setdefault((table, model, method, budget), {})
        for one in column.split(", "):
            mine[one] = Misprint(said, delta)
    return misprints


def _read(name: str) -> tuple[list[str], list[list[str]]]:
    """The names of its columns, and its lines."""
    path = files("foveate_lab.reproduce").joinpath("figures", f"{name}.tsv")
    if not path.is_file():
        raise InvalidInput(
            f"{path} is missing: it holds the paper's figures of {name!r}. Install foveate anew, "
            "or give the name of a file that is there."
        )
    head, *lines = path.read_text("utf-8").splitlines()
    return head.split("\t"), [line.split("\t") for line in lines]
