"""Notes below a table: numbers of samples, refusals, and marks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from string import ascii_lowercase

from foveate_lab.reproduce.tables.laid_out import PlacedCell
from foveate_lab.reproduce.tables.table import NOT_BROUGHT, TableCell, counted


@dataclass
class Marks:
    """Letters for notes on single cells, in the order of their first use."""

    notes: dict[str, str] = field(default_factory=dict)  # a note, and its letter

    def of(self, *notes: str) -> str:
        """Return the letters of a cell's notes."""
        return " ".join(
            self.notes.setdefault(note, _letter(len(self.notes))) for note in notes if note
        )

    @property
    def listed(self) -> list[tuple[str, str]]:
        """Letters, each with its note."""
        return [(letter, note) for note, letter in self.notes.items()]


def _letter(number: int) -> str:
    count = len(ascii_lowercase)
    more = _letter(number // count - 1) if number >= count else ""
    return more + ascii_lowercase[number % count]


class Counts:
    """Counts of a table's samples: what is usual in each column, and exceptions of cells."""

    def __init__(self, pieces: Iterable[PlacedCell]) -> None:
        self._cells = [(piece.at["column"], piece.cell) for piece in pieces]
        by_column: dict[str, Counter[int]] = {}
        remarks: dict[str, set[str]] = {}
        for column, cell in self._cells:
            if cell.samples:
                by_column.setdefault(column, Counter())[cell.samples] += 1
            remarks.setdefault(column, set()).add(cell.remark)
        self._usual = {name: counter.most_common(1)[0][0] for name, counter in by_column.items()}
        self._alike = {
            name: remark for name, (remark, *others) in remarks.items() if remark and not others
        }

    def exceptions(self, column: str, cell: TableCell) -> Iterator[str]:
        """Yield the notes on a cell that hold neither for its whole column nor for the table."""
        samples, usual = cell.samples, self._usual.get(column, 0)
        if samples is not None and samples != usual and (samples or cell.refused):
            yield counted(samples)
        for note in cell.exceptions:
            if note != self._alike.get(column):
                yield f"{NOT_BROUGHT}: see above" if note.startswith(NOT_BROUGHT) else note

    def sentences(self) -> Iterator[str]:
        """Yield sentences on the samples of a cell, refusals, raised budgets and empty cells."""
        numbers = {*self._usual.values()}
        if len(numbers) == 1:
            yield f"Samples in a cell: {numbers.pop():,}."
        elif numbers:
            each = (f"{name} {count:,}" for name, count in self._usual.items())
            yield f"Samples in a cell: {'; '.join(each)}."
        yield from (f"{name}: {remark}." for name, remark in self._alike.items())
        if any(cell.samples is not None for _, cell in self._cells):
            refused = sum(cell.refused for _, cell in self._cells)
            yield f"Answers refused: {refused:,}."
        if raised := sum(cell.raised for _, cell in self._cells):
            yield f"Answers that kept more than was asked: {raised:,}."
        if empty := sum(cell.measured is None for _, cell in self._cells):
            yield f"Cells without a number of ours: {empty:,} of {len(self._cells):,}."
        if idle := sum(cell.samples == 0 and not cell.refused for _, cell in self._cells):
            yield f"Without any sample, of them: {idle:,}."
