"""How far ``foveate reproduce`` is: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

from time import monotonic

import typer
from rich.progress import Progress as Bars

from foveate.reproduce.progress import Progress

EVERY = 60.0  # seconds between the lines of one step
LETTERS = 60


class Teller:
    """Told of every row and profile. Where there is no terminal, it writes a line a minute and one
    for each step that had something to do, on stderr.
    """

    def __init__(self, bars: Bars, quiet: bool):
        self._bars, self._quiet = bars, quiet
        self._bar = bars.add_task("", total=None)
        self._began = self._said = monotonic()

    def __call__(self, at: Progress) -> None:
        """Says where the run is."""
        done = at.number if at.over else at.number - 1
        where = f"{at.number} of {at.of}: {at.step.experiment.id}, {at.rows} rows"
        text = f"{where}, {at.what}"[:LETTERS]
        self._bars.update(self._bar, total=at.of, completed=done, description=text)
        now = monotonic()
        if self._bars.disable and not self._quiet and self._due(at, now):
            self._said = now
            spent = f"{(now - self._began) / 60:.1f} min"
            typer.echo(f"{spent}, {where}{'' if at.over else ' so far'}", err=True)

    def _due(self, at: Progress, now: float) -> bool:
        return at.rows > 0 if at.over else now - self._said > EVERY
