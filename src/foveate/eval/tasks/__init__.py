"""Tasks that need nothing but this package: one file for each kind of sample, or other
packages that come with real text, photographs and pages.
"""

from pathlib import Path

from foveate.errors import InvalidInput, suggest
from foveate.eval.benchmarks import BENCHMARKS
from foveate.eval.judge import Judge
from foveate.eval.sample import TASKS, Task
from foveate.eval.tasks import (
    drawn,
    gui_icon,
    gui_text,
    long_answer,
    scene_text,
    text_needle,
)

__all__ = [
    "drawn",
    "find_task",
    "find_tasks",
    "gui_icon",
    "gui_text",
    "long_answer",
    "scene_text",
    "text_needle",
]


def find_tasks(name: str, judge: Judge | None = None, outside: bool = False) -> list[Task]:
    """The task of that name; or all of a benchmark that has several: "milebench=/data/milebench" is
    milebench_t1, milebench_t2 and so on.

    Raises:
        InvalidInput: there is none, or no such folder.
    """
    kind, _, folder = name.partition("=")
    several = [one for one in BENCHMARKS if one.startswith(f"{kind}_")]
    if kind in BENCHMARKS or not several:
        return [find_task(name, judge, outside)]
    return [find_task(f"{one}={folder}" if folder else one, judge, outside) for one in several]


def find_task(name: str, judge: Judge | None = None, outside: bool = False) -> Task:
    """The task of that name, or the benchmark in a folder: "docvqa=/data/docvqa". The judge scores
    where a benchmark needs one. What a benchmark's files name has to lie in its folder, unless
    ``outside``.

    Raises:
        InvalidInput: there is none, or no such folder.
    """
    kind, _, folder = name.partition("=")
    if folder and kind in BENCHMARKS:
        return BENCHMARKS[kind].task(Path(folder).expanduser(), judge, outside=outside)
    if kind in BENCHMARKS:
        raise InvalidInput(
            f"{kind} is read from a folder that holds {BENCHMARKS[kind].holds}: write "
            f"{kind}=FOLDER."
        )
    if name not in TASKS:
        raise InvalidInput(f"no task named {name!r}. {suggest(kind, [*TASKS, *BENCHMARKS])}")
    return TASKS[name]
