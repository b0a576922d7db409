"""Tasks that need nothing but this package: one file for each kind of sample."""

from pathlib import Path

from foveate.core.errors import InvalidInput, suggest
from foveate.eval.benchmarks import BENCHMARKS
from foveate.eval.sample import TASKS, Task
from foveate.eval.tasks import drawn

__all__ = ["drawn", "find_task"]


def find_task(name: str) -> Task:
    """The task of that name, or the benchmark in a folder: "docvqa=/data/docvqa".

    Raises:
        InvalidInput: there is none, or no such folder.
    """
    kind, _, folder = name.partition("=")
    if folder and kind in BENCHMARKS:
        return BENCHMARKS[kind].task(Path(folder).expanduser())
    if kind in BENCHMARKS:
        raise InvalidInput(
            f"{kind} is read from a folder that holds {BENCHMARKS[kind].holds}: write "
            f"{kind}=FOLDER."
        )
    if name not in TASKS:
        raise InvalidInput(f"no task named {name!r}. {suggest(kind, [*TASKS, *BENCHMARKS])}")
    return TASKS[name]
