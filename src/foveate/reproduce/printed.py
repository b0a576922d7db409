"""The papers' figures: one file of tab-separated values a table, with the line of the text."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import NamedTuple

from foveate.errors import InvalidInput


class Printed(NamedTuple):
    """A line of a paper's table: where it stands, and its values by column."""

    source: str
    values: dict[str, float]


Key = tuple[str, str, str]
"""Model, method, budget."""


@cache
def printed(name: str) -> dict[Key, Printed]:
    """The table of that name; of none ("") nothing, where the paper prints no numbers.

    Raises:
        InvalidInput: there is no file of that name: the installation lacks it.
    """
    if not name:
        return {}
    path = files("foveate.reproduce").joinpath("figures", f"{name}.tsv")
    if not path.is_file():
        raise InvalidInput(
            f"{path} is missing: it holds the paper's figures of {name!r}. Install foveate anew, "
            "or give the name of a file that is there."
        )
    head, *lines = path.read_text("utf-8").splitlines()
    columns = head.split("\t")[4:]
    found: dict[Key, Printed] = {}
    for line in lines:
        source, model, method, budget, *values = line.split("\t")
        numbers = {
            column: float(value)
            for column, value in zip(columns, values, strict=True)
            if value not in ("-", "OOM")
        }
        found[model, method, budget] = Printed(source, numbers)
    return found
