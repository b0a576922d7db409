"""Numbers in the digits of the paper: 45.0 stays 45.0, and its neighbour has one digit, too."""

from __future__ import annotations

import math

from foveate_lab.reproduce.tables.table import OOM, TableCell

EMPTY = "-"


def decimals(text: str) -> int:
    """Return the number of digits that a printed number has behind its point."""
    return len(text.partition(".")[2])


def measured(cell: TableCell, otherwise: str = "", sign: bool = False) -> str:
    """Format a measured number with as many digits as the paper's number in that cell, or as
    ``otherwise``, a number of its column; else with three significant ones.
    """
    if cell.measured is None:
        return "OOM" if cell.remark == OOM else EMPTY
    return format_number(cell.measured, cell.printed or otherwise, sign)


def of_paper(cell: TableCell, sign: bool = False) -> str:
    """Return the paper's number as printed, or with three digits where the paper does not print
    it.
    """
    if cell.printed or cell.paper is None:
        return cell.printed
    return format_number(cell.paper, "", sign)


def difference(cell: TableCell) -> str:
    """Format measured less the paper's, in the paper's digits; "" where either is missing."""
    amount = cell.difference
    return (
        ""
        if amount is None or not math.isfinite(amount)
        else format_number(amount, cell.printed, True)
    )


def format_number(value: int | float, like: str, sign: bool = False) -> str:
    """Format a number in the digits of a printed one; with three significant ones without it."""
    if not math.isfinite(value):
        return "infinite"
    digits = decimals(like) if _is_number(like) else _three(value)
    text = f"{value:{'+' if sign else ''}.{digits}f}"
    return text.replace("-0", "+0" if sign else "0", 1) if float(text) == 0 else text


def _three(value: int | float) -> int:
    """Return the digits behind the point that make three significant ones."""
    if value == 0:
        return 0
    return min(6, max(0, 2 - math.floor(math.log10(abs(value)))))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
