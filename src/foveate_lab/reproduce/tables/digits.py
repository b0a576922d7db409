"""Numbers in the digits of the paper: 45.0 stays 45.0, and what stands beside it has one digit."""

from __future__ import annotations

import math

from foveate_lab.reproduce.tables.table import OOM, TableCell

EMPTY = "-"


def decimals(text: str) -> int:
    """How many digits a printed number has behind its point."""
    return len(text.partition(".")[2])


def measured(cell: TableCell, otherwise: str = "", sign: bool = False) -> str:
    """What was measured, with as many digits as the paper's number in that cell, or as
    ``otherwise``, one of its column; else with three that count.
    """
    if cell.measured is None:
        return "OOM" if cell.remark == OOM else EMPTY
    return said(cell.measured, cell.printed or otherwise, sign)


def of_paper(cell: TableCell, sign: bool = False) -> str:
    """The paper's number as it prints it; what it does not print itself with three digits."""
    if cell.printed or cell.paper is None:
        return cell.printed
    return said(cell.paper, "", sign)


def difference(cell: TableCell) -> str:
    """Measured less the paper's, in the digits of the paper's; nothing where either is missing."""
    amount = cell.difference
    return "" if amount is None or not math.isfinite(amount) else said(amount, cell.printed, True)


def said(value: int | float, like: str, sign: bool = False) -> str:
    """A number in the digits of a printed one, of none ("") or a word with three that count."""
    if not math.isfinite(value):
        return "infinite"
    places = decimals(like) if _is_number(like) else _three(value)
    text = f"{value:{'+' if sign else ''}.{places}f}"
    return text.replace("-0", "+0" if sign else "0", 1) if float(text) == 0 else text


def _three(value: int | float) -> int:
    """Digits behind the point, of three that count."""
    if value == 0:
        return 0
    return min(6, max(0, 2 - math.floor(math.log10(abs(value)))))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
