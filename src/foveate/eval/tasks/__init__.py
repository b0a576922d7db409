"""Tasks that need nothing but this package: one file for each kind of sample."""

from foveate.core.errors import InvalidInput, suggest
from foveate.eval.sample import TASKS, Task
from foveate.eval.tasks import drawn

__all__ = ["drawn", "find_task"]


def find_task(name: str) -> Task:
    """The task of that name.

    Raises:
        InvalidInput: there is none.
    """
    if name not in TASKS:
        raise InvalidInput(f"no task named {name!r}. {suggest(name, TASKS)}")
    return TASKS[name]
