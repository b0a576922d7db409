"""Layout of a table as in the paper: blocks, lines of gains, and spanned cells, without HTML."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from foveate_lab.reproduce.tables.digits import decimals
from foveate_lab.reproduce.tables.laid_out import (
    ColumnHeading,
    Coordinates,
    Laid,
    LaidRow,
    Placed,
    PlacedCell,
    RowHeading,
)
from foveate_lab.reproduce.tables.table import (
    BUDGETS_ACROSS,
    METHODS_DOWN,
    Dimension,
    Table,
    TableCell,
    TableLayout,
)

GAINS = "Δ"
WHOLE = "100%"  # shown as the budget of a policy that keeps everything
HEADS: Mapping[Dimension, str] = {
    "model": "model",
    "method": "method",
    "budget": "budget",
    "column": "",
    "group": "",
    "member": "setting",
}


def lay_out(table: Table, columns: Sequence[str]) -> Laid:
    """Lay out these columns of a table in the way that it names."""
    pieces = list(_pieces(table, columns))
    layout = table.layout or _usual(table)
    spanned = "budget" in layout.across and "method" in layout.down
    several = spanned and any(piece.at["budget"] for piece in pieces)
    along = [piece for piece in pieces if piece.at["budget"] or not several]
    keys = _group_keys([_key(piece, layout.across) for piece in along])
    return Laid(
        tuple(HEADS[dimension] for dimension in layout.down),
        tuple(_heads(keys)),
        tuple(_rows(pieces, layout, keys)),
    )


def _usual(table: Table) -> TableLayout:
    several = len({line.budget for line in table.lines if line.budget}) > 1
    return BUDGETS_ACROSS if several else METHODS_DOWN


def _pieces(table: Table, columns: Sequence[str]) -> Iterator[PlacedCell]:
    like = {name: _like(table, at) for at, name in enumerate(table.columns)}
    for line in table.lines:
        group, _, member = line.method.rpartition(", ")
        for name, cell in zip(table.columns, line.cells, strict=True):
            if name in columns:
                at: Coordinates = {
                    "model": line.model,
                    "method": line.method,
                    "budget": line.budget,
                    "column": name,
                    "group": group,
                    "member": member,
                }
                yield PlacedCell(at, line, cell, like[name])


def _like(table: Table, at: int) -> str:
    """Return a printed number of a column, with as many digits as most of its numbers have."""
    texts = [line.cells[at].printed for line in table.lines if line.cells[at].paper is not None]
    count = Counter(map(decimals, texts))
    return max(texts, key=lambda text: count[decimals(text)], default="")


def _key(piece: PlacedCell, dimensions: Sequence[Dimension]) -> tuple[str, ...]:
    return tuple(piece.at[dimension] for dimension in dimensions)


def _group_keys(keys: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return each key once, those with the same beginning side by side, in the order of the
    first.
    """
    first: dict[tuple[str, ...], int] = {}
    for at, key in enumerate(keys):
        for depth in range(1, len(key) + 1):
            first.setdefault(key[:depth], at)
    return sorted(
        dict.fromkeys(keys),
        key=lambda key: [first[key[:depth]] for depth in range(1, len(key) + 1)],
    )


def _heads(keys: Sequence[tuple[str, ...]]) -> Iterator[tuple[ColumnHeading, ...]]:
    """Yield a row of headings for each dimension, with equal neighbours joined."""
    for depth in range(len(keys[0]) if keys else 0):
        groups = groupby(keys, key=lambda key, depth=depth: key[: depth + 1])  # type: ignore[misc]
        yield tuple(ColumnHeading(begin[-1], len(list(mine))) for begin, mine in groups)


def _rows(
    pieces: Sequence[PlacedCell], layout: TableLayout, keys: Sequence[tuple[str, ...]]
) -> Iterator[RowHeading | LaidRow]:
    """Yield rows block by block; below a method with a base method, its gains over that."""
    by_line: dict[tuple[str, ...], list[PlacedCell]] = {}
    for piece in pieces:
        by_line.setdefault(_key(piece, (*layout.blocks, *layout.down)), []).append(piece)
    last = None
    for key in _group_keys(list(by_line)):
        mine, count = by_line[key], len(layout.blocks)
        block, names = key[:count], key[count:]
        if block != last and layout.blocks:
            yield RowHeading(_heading_text(layout.blocks, block))
        last = block
        source = ", ".join(dict.fromkeys(_sources(mine)))
        yield LaidRow(_labels(layout, names, mine), tuple(_cells(mine, layout, keys)), source)
        gained = [gain for piece in mine if piece.line.over and (gain := _gain(piece, pieces))]
        if gained:
            cells = tuple(cell._replace(gain=True) for cell in _cells(gained, layout, keys))
            yield LaidRow((GAINS, *[""] * (len(names) - 1)), cells, "")


def _sources(mine: Sequence[PlacedCell]) -> Iterator[str]:
    """Yield the sources of cells for which the paper has a number."""
    for piece in mine:
        if piece.line.source and (piece.cell.printed or piece.cell.paper is not None):
            yield piece.line.source


def _heading_text(dimensions: Sequence[Dimension], values: Sequence[str]) -> str:
    parts = (
        f"budget {value}" if dimension == "budget" else value
        for dimension, value in zip(dimensions, values, strict=True)
        if value
    )
    return ", ".join(parts)


def _labels(
    layout: TableLayout, names: Sequence[str], mine: Sequence[PlacedCell]
) -> tuple[str, ...]:
    """Return the names of a row: the addition to a base method ("+ MixKV"), 100% without a
    budget.
    """
    labels = dict(zip(layout.down, names, strict=True))
    over = mine[0].line.over
    if over and "method" in labels and labels["method"].startswith(f"{over} "):
        labels["method"] = labels["method"].removeprefix(over).strip()
    if labels.get("budget") == "":
        labels["budget"] = WHOLE
    return tuple(labels.values())


def _cells(
    mine: Sequence[PlacedCell], layout: TableLayout, keys: Sequence[tuple[str, ...]]
) -> Iterator[Placed]:
    """Yield the cells of a row; a cell without a budget spans all columns of budgets."""
    there = {_key(piece, layout.across): piece for piece in mine}
    if keys and not any(key in there for key in keys):
        at = layout.across.index("budget")
        for begin, group in groupby(keys, key=lambda key: key[:at]):
            yield Placed(there.get((*begin, "")), len(list(group)), begins=True)
        return
    for before, key in zip((None, *keys), keys, strict=False):
        begins = len(key) > 1 and (before is None or before[0] != key[0])
        yield Placed(there.get(key), begins=begins)


def _gain(piece: PlacedCell, pieces: Sequence[PlacedCell]) -> PlacedCell | None:
    """Return the gain over the base method, of measured and of printed numbers; None without
    one.
    """
    base = {**piece.at, "method": piece.line.over}
    for candidate in pieces:
        if all(candidate.at[d] == base[d] for d in ("model", "method", "budget", "column")):
            return piece._replace(cell=_gain_cell(candidate.cell, piece.cell))
    return None


def _gain_cell(base: TableCell, cell: TableCell) -> TableCell:
    measured = None
    if base.measured is not None and cell.measured is not None:
        measured = cell.measured - base.measured
    if base.paper is None or cell.paper is None:
        return TableCell(measured, None)
    paper, digits = cell.paper - base.paper, decimals(cell.printed)
    printed = cell.delta or f"{paper:+.{digits}f}"
    return TableCell(measured, paper, printed=printed, misprint=cell.misprint if cell.delta else "")
