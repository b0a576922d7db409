"""Where output goes: results to stdout, everything else to stderr."""

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

Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")]


def print_json(value: Any) -> None:
    """Prints JSON alone on stdout, in ASCII, so that every terminal and pipe can take it."""
    typer.echo(json.dumps(value, indent=2, allow_nan=False))


def show(*parts: RenderableType) -> None:
    """Prints tables and text on stdout, as wide as the terminal, at most 100 columns."""
    console = Console(highlight=False, markup=False)
    console.width = min(console.width, 100)
    for part in parts:
        console.print(part)


@contextmanager
def progress(
    hidden: bool, lines: bool = True, columns: Sequence[ProgressColumn] = ()
) -> Iterator[Progress]:
    """Progress bars on stderr, which vanish when the work is done; in a pipe lines, if
    ``lines``. The last column is the time unless there are ``columns``.

    The bars of transformers give way to ours; those of hub downloads stay unless all are hidden.
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
        with bars(*(columns or (TimeElapsedColumn(),)), hidden=hidden, lines=lines) as made:
            yield made
    finally:
        if loading:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
        if downloads and silent:
            enable_progress_bars()


def errors() -> Console:
    """Where everything goes that is no result."""
    return Console(stderr=True)


def bars(*more: ProgressColumn, hidden: bool = False, lines: bool = True) -> Progress:
    """Progress bars on stderr, with these columns at their end; ``lines`` where no terminal shows
    them, and nothing where they are ``hidden``.
    """
    what = TextColumn("{task.description}", markup=False)
    console = errors()
    made = ProgressLines if lines and not hidden and not console.is_terminal else Progress
    off = hidden or not console.is_terminal
    return made(
        SpinnerColumn(), what, BarColumn(), *more, console=console, disable=off, transient=True
    )


EVERY = 30.0  # seconds between the lines


class ProgressLines(Progress):
    """Progress in a pipe: now and then a line on stderr says how far the work is."""

    def __init__(self, *columns: ProgressColumn, **settings: Any):
        super().__init__(*columns, **settings)
        self._began = self._said = monotonic()

    def update(self, task_id: TaskID, **changes: Any) -> None:
        super().update(task_id, **changes)
        self._say(task_id)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self._say(task_id)

    def _say(self, task_id: TaskID) -> None:
        at = monotonic()
        if at - self._said < EVERY:
            return
        self._said, task = at, self._tasks[task_id]
        done = f": {task.completed:.0f} of {task.total:.0f}" if task.total else ""
        typer.echo(f"{(at - self._began) / 60:.1f} min, {task.description}{done}", err=True)


def quiet() -> AbstractContextManager[None]:
    """Silence what transformers logs, such as its remarks on generation settings."""
    from foveate.loading.checkpoint import silent

    return silent()
