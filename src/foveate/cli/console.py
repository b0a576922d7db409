"""Output of commands: results go to stdout, everything else to stderr."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from time import monotonic
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

Json = Annotated[bool, typer.Option("--json", help="Print only JSON on stdout.")]


def print_json(value: Any) -> None:
    """Print JSON on stdout, in ASCII, which every terminal and pipe can encode."""
    typer.echo(json.dumps(value, indent=2, allow_nan=False))


def show(*parts: RenderableType) -> None:
    """Print tables and text on stdout, as wide as the terminal, at most 100 columns."""
    console = Console(highlight=False, markup=False)
    console.width = min(console.width, 100)
    for part in parts:
        console.print(part)


@contextmanager
def progress(
    hidden: bool, lines: bool = True, columns: Sequence[ProgressColumn] = ()
) -> Iterator[Progress]:
    """Show progress bars on stderr that disappear at the end.

    The progress bars of transformers are switched off meanwhile; those of hub downloads only where
    ours are not shown either.

    Args:
        hidden: show nothing.
        lines: print lines now and then if stderr is no terminal.
        columns: columns at the end of a bar instead of the elapsed time.
    """
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )
    from transformers.utils import logging

    silent = hidden or not errors().is_terminal
    loading, downloads = logging.is_progress_bar_enabled(), not are_progress_bars_disabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if silent:
        disable_progress_bars()
    try:
        with bars(
            *(columns or (TimeElapsedColumn(),)), hidden=hidden, lines=lines
        ) as progress_bars:
            yield progress_bars
    finally:
        if loading:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
        if downloads and silent:
            enable_progress_bars()


def errors() -> Console:
    """Return a console on stderr, for all output that is no result."""
    return Console(stderr=True)


def bars(*more: ProgressColumn, hidden: bool = False, lines: bool = True) -> Progress:
    """Return progress bars on stderr that end with the columns ``more``.

    If stderr is no terminal, ``lines`` prints lines instead. ``hidden`` shows nothing.
    """
    description = TextColumn("{task.description}", markup=False)
    console = errors()
    kind = ProgressLines if lines and not hidden and not console.is_terminal else Progress
    off = hidden or not console.is_terminal
    return kind(
        SpinnerColumn(),
        description,
        BarColumn(),
        *more,
        console=console,
        disable=off,
        transient=True,
    )


EVERY = 30.0  # seconds between two lines


class ProgressLines(Progress):
    """Progress for a stderr that is no terminal: a line every ``EVERY`` seconds."""

    def __init__(self, *columns: ProgressColumn, **settings: Any):
        super().__init__(*columns, **settings)
        self._started = self._reported = monotonic()

    def update(self, task_id: TaskID, **changes: Any) -> None:
        super().update(task_id, **changes)
        self._report(task_id)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self._report(task_id)

    def _report(self, task_id: TaskID) -> None:
        now = monotonic()
        if now - self._reported < EVERY:
            return
        self._reported, task = now, self._tasks[task_id]
        done = f": {task.completed:.0f} of {task.total:.0f}" if task.total else ""
        typer.echo(f"{(now - self._started) / 60:.1f} min, {task.description}{done}", err=True)


def quiet() -> AbstractContextManager[None]:
    """Silence the log of transformers, such as its remarks on generation settings."""
    from foveate.loading.checkpoint import silent

    return silent()
