"""Gains of base methods by what a paper adds to them, pair by pair and on average."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from foveate_lab.report.analyses import Figure
from foveate_lab.reproduce.setting import Setting
from foveate_lab.reproduce.tables.printed import BLANK, printed
from foveate_lab.reproduce.tables.table import Table, TableCell, TableLine
from foveate_lab.reproduce.trials.arms import Arm
from foveate_lab.reproduce.trials.grid import GridTrial

MEAN = "Mean"


@dataclass(frozen=True, kw_only=True)
class Gains(GridTrial):
    """Relative gains in percent of pairs of ``arms``: a base method, and the same with an addition.
    The paper's gains are computed from its own table, ``printed_in``. ``claimed`` is the mean that
    its text states, at the line ``source``.
    """

    printed_in: str
    claimed: float
    source: str

    def summarise(self, settings: Sequence[Setting]) -> Iterator[Table | Figure]:
        """Yield the gains, with the mean of all pairs, sets and models below."""
        lines = [line for setting in settings for line in self._gain_lines(setting)]
        names = (*(column.name for column in self.across), MEAN)
        small = any(setting.small for setting in settings)
        total = self._total(lines)
        yield Table(self.title, names, (*lines, total), self._shrunk() if small else ())

    def _gain_lines(self, setting: Setting) -> Iterator[TableLine]:
        figures = printed(self.printed_in)
        filled = list(self._fill(setting))
        for base, more in zip(filled[::2], filled[1::2], strict=True):
            papers = [
                figures.get((setting.model, line.method, line.budget), BLANK)
                for line in (base, more)
            ]
            cells = [
                TableCell(
                    relative(base_cell.measured, other.measured),
                    relative(*(paper.values.get(column.name) for paper in papers)),
                    other.remark,
                    other.samples,
                    other.refused,
                    other.raised,
                )
                for column, base_cell, other in zip(
                    self.across, base.cells, more.cells, strict=True
                )
            ]
            source = ", ".join(paper.source for paper in papers if paper.source)
            cells.append(
                TableCell(
                    _mean([c.measured for c in cells]), _mean([c.paper for c in cells]), "mean"
                )
            )
            yield more._replace(source=source, cells=tuple(cells), over="")

    def _total(self, lines: Sequence[TableLine]) -> TableLine:
        """Return the line of the mean, which is empty unless every cell has a number."""
        gains = [cell.measured for line in lines for cell in line.cells[:-1]]
        there = sum(gain is not None for gain in gains)
        note = f"{there} of {len(gains)} gains, {len(lines)} pairs"
        empty = tuple(TableCell(None, None) for _ in self.across)
        cells = (*empty, TableCell(_mean(gains), self.claimed, note))
        return TableLine(
            "all", "mean over pairs and sets", ", ".join(self.budgets), "", self.source, cells
        )


def relative(base: float | None, more: float | None) -> float | None:
    """Return the gain in percent of the base; None where either is missing or the base is 0."""
    if base is None or more is None or base == 0:
        return None
    return 100 * (more - base) / base


def _mean(numbers: Sequence[float | None]) -> float | None:
    there = [value for value in numbers if value is not None]
    return sum(there) / len(there) if there and len(there) == len(numbers) else None


def paired(*pairs: Sequence[Arm]) -> tuple[Arm, ...]:
    """Return the arms of several pairs, one pair after the other."""
    return tuple(arm for base, more in pairs for arm in (base, more))
