"""Pairwise cover: of a product of factors, few rows in which every two values of two factors meet.

A fault of one family, one method or one mode shows in any row that has it, and one of two of them
together in a row that has both. The rest of the product costs many times as much and finds only
what takes more than two at once, so it is not tested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations, product
from typing import Any

import pytest

Row = tuple[Any, ...]


def pairs(*factors: Iterable[Any]) -> list[Row]:
    """Rows of one value per factor, in a fixed order, in which every pair of values of any two
    factors stands at least once.
    """
    values = [list(factor) for factor in factors]
    columns = range(len(values))
    open_pairs = {
        (i, a, j, b)
        for i, j in combinations(columns, 2)
        for a, b in product(range(len(values[i])), range(len(values[j])))
    }
    if len(values) == 1:
        return [(value,) for value in values[0]]
    rows = []
    while open_pairs:
        row = _row([len(each) for each in values], open_pairs)
        open_pairs -= {(i, row[i], j, row[j]) for i, j in combinations(columns, 2)}
        rows.append(tuple(each[at] for each, at in zip(values, row, strict=True)))
    return rows


def _row(sizes: list[int], open_pairs: set[tuple[int, int, int, int]]) -> list[int]:
    """The indices of one more row: it starts from a pair that is open, and takes for each other
    factor the value that closes most pairs with those chosen, the first among equals.
    """
    i, a, j, b = min(open_pairs)
    chosen = {i: a, j: b}
    for column in (column for column in range(len(sizes)) if column not in chosen):
        chosen[column] = max(
            range(sizes[column]),
            key=lambda value: sum(
                _pair(column, value, *one) in open_pairs for one in chosen.items()
            ),
        )
    return [chosen[column] for column in range(len(sizes))]


def _pair(i: int, a: int, j: int, b: int) -> tuple[int, int, int, int]:
    return (i, a, j, b) if i < j else (j, b, i, a)


def by_turns(start: int = 0, rounds: int = 1, **factors: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrizes a test so that each value of the first factor has one row or a few, and meets
    the rows of a pairwise cover of the others in turns, from ``start`` on. With more ``rounds``
    each meets as many of them, far apart. A factor is a list, or a mapping of names to values,
    whose names then stand in the test's id.

    For one mode out of many: the first factor's values (families) meet those of the others
    (policies) all over in another test, and here each of them meets the mode.
    """
    first, *others = map(_names, factors.values())
    rest = pairs(*others)
    count = max(len(first), len(rest))
    starts = [start + turn * (len(rest) // rounds | 1) for turn in range(rounds)]
    rows = [
        (first[i % len(first)], *rest[(i + begin) % len(rest)])
        for begin in starts
        for i in range(count)
    ]
    return _parametrized(factors, rows)


def in_step(start: int = 0, **factors: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrize a test with as many rows as the longest factor has values: from row to row each
    factor goes on by one value, so that every value has a row. ``start`` shifts the factors.

    For one mode out of many whose other factors already meet each other in another test.
    """
    values = [_names(factor) for factor in factors.values()]
    rows = [
        tuple(names[(row + start * number) % len(names)] for number, names in enumerate(values))
        for row in range(max(map(len, values)))
    ]
    return _parametrized(factors, rows)


def _names(factor: Iterable[Any]) -> list[str]:
    return [str(value) for value in factor]


def _parametrized(factors: dict[str, Iterable[Any]], rows: list[Row]) -> pytest.MarkDecorator:
    """Parametrize a test with the values of these rows of names."""
    values = [
        dict(factor) if isinstance(factor, dict) else {str(value): value for value in factor}
        for factor in factors.values()
    ]
    params = [
        pytest.param(
            *(known[name] for known, name in zip(values, row, strict=True)), id="-".join(row)
        )
        for row in dict.fromkeys(rows)
    ]
    return pytest.mark.parametrize(list(factors), params)


def failures(check: Callable[..., None], cases: Iterable[Row]) -> dict[Row, str]:
    """Run a check on every case in one test, and return the errors of the cases that fail."""
    found = {}
    for case in cases:
        try:
            check(*case)
        except Exception as error:
            found[case] = f"{type(error).__name__}: {error}"
    return found
