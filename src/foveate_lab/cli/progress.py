"""Progress of ``foveate reproduce``: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

from time import monotonic

import typer
from rich.progress import Progress as Bars

from foveate_lab.reproduce.running.progress import Progress

EVERY = 60.0  # seconds between lines
LETTERS = 60


class Teller:
    """Callback for every row and profile.

    Without a terminal it writes a line a minute to stderr, and one at the end.
    """

    def __init__(self, bars: Bars, quiet: bool):
        self._bars, self._quiet = bars, quiet
        self._bar = bars.add_task("", total=None)
        self._began = self._last_line = monotonic()

    def __call__(self, at: Progress) -> None:
        """Show the progress of the run."""
        where = f"{at.rows:,} of {at.of:,} rows"
        left = "" if at.over or at.left_s is None else f", {duration(at.left_s)} left"
        text = f"{where}{left}, {at.what}"[:LETTERS]
        self._bars.update(self._bar, total=at.of, completed=at.rows, description=text)
        now = monotonic()
        due = at.new > 0 if at.over else now - self._last_line > EVERY
        if self._bars.disable and not self._quiet and due:
            self._last_line = now
            doing = f", at {at.what}" if at.what else ""
            typer.echo(f"{duration(now - self._began)}, {where}{left}{doing}", err=True)


def duration(seconds: float) -> str:
    """Format seconds as minutes, or as hours from two hours on."""
    return f"{seconds / 60:.1f} min" if seconds < 2 * 3600 else f"{seconds / 3600:,.1f} h"
