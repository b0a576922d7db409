"""Tasks that need nothing but this package: one file for each kind of sample, or other
packages that come with real text, photographs and pages.
"""

import re
from collections.abc import Container, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from foveate.errors import InvalidInput, InvalidParameter, suggest
from foveate.policies.spec import parse_arguments
from foveate_lab.eval.benchmarks import BENCHMARKS
from foveate_lab.eval.benchmarks.folder import NONE
from foveate_lab.eval.benchmarks.options import options, parameters
from foveate_lab.eval.benchmarks.sources import Sources
from foveate_lab.eval.judge import Judge
from foveate_lab.eval.task_registry import TASKS, Task
from foveate_lab.eval.tasks import (
    drawn,
    gui_icon,
    gui_text,
    long_answer,
    pages,
    scene_text,
    text_needle,
)

__all__ = [
    "drawn",
    "find_conversations",
    "find_sources",
    "find_task",
    "find_tasks",
    "gui_icon",
    "gui_text",
    "long_answer",
    "pages",
    "scene_text",
    "separate_tasks",
    "text_needle",
]


def separate_tasks(text: str) -> list[str]:
    """The names in a list such as "chart,milebench_s4(set=ALFRED,longest=64)=/data/milebench".

    Raises:
        InvalidInput: there are none, so that nothing would be asked.
    """
    names = [name.strip() for name in re.split(r",(?![^()]*\))", text) if name.strip()]
    if not names:
        raise InvalidInput(f"{text!r} names no task. Known: {', '.join((*TASKS, *BENCHMARKS))}.")
    return names


def find_tasks(
    name: str,
    judge: Judge | None = None,
    outside: bool = False,
    films: Mapping[str, int | float] = NONE,
) -> list[Task]:
    """The task of that name; or all of a benchmark that has several: "milebench=/data/milebench" is
    milebench_t1, milebench_t2 and so on, each with the options that were given.

    Raises:
        InvalidInput: there is none, or no such folder.
        InvalidParameter: no such option, or a value that it does not take.
    """
    kind, rest = _kind(name)
    several = [one for one in BENCHMARKS if one.startswith(f"{kind}_")]
    if kind in BENCHMARKS or not several:
        return [find_task(name, judge, outside, films)]
    return [find_task(f"{one}{rest}", judge, outside, films) for one in several]


def find_task(
    name: str,
    judge: Judge | None = None,
    outside: bool = False,
    films: Mapping[str, int | float] = NONE,
) -> Task:
    """The task of that name, "pages" or with options "pages(pages=8)"; or the benchmark in a
    folder, "docvqa=/data/docvqa" or "docvqa(longest=16)=/data/docvqa". The judge scores where a
    benchmark needs one. What a benchmark's files name has to lie in its folder, unless ``outside``.
    ``films`` says how many frames are taken of videos (``fps`` or ``frames``), where a benchmark
    has any.

    Raises:
        InvalidInput: there is none, or no such folder.
        InvalidParameter: no such option, a value that it does not take, or frames that are asked
            for twice.
        InvalidSpec: options that are not of the form key=value.
    """
    kind, rest = _kind(name)
    if kind in BENCHMARKS:
        benchmark, (given, folder) = BENCHMARKS[kind], _options_and_folder(rest)
        if not folder:
            raise InvalidInput(
                f"{kind} is read from a folder that holds {benchmark.contents}: "
                f"write {kind}=FOLDER."
            )
        given = _with_frames(name, given, films, parameters(benchmark.read))
        return benchmark.task(Path(folder).expanduser(), judge, outside=outside, overrides=given)
    if kind not in TASKS:
        raise InvalidInput(f"no task named {name!r}. {suggest(kind, [*TASKS, *BENCHMARKS])}")
    return _with_options(TASKS[kind], rest)


def _with_frames(
    name: str,
    given: Mapping[str, Any],
    films: Mapping[str, int | float],
    known: Container[str],
) -> dict[str, Any]:
    """The options of a benchmark, with the frames that are taken of its videos."""
    known_films = {key: value for key, value in films.items() if key in known}
    if known_films and (twice := [key for key in ("fps", "frames") if key in given]):
        raise InvalidParameter(
            f"{name} says its own {twice[0]}, and --{next(iter(known_films))} another: "
            "leave one out."
        )
    return {**given, **known_films}


def _with_options(task: Task, rest: str) -> Task:
    """A drawn task by the options that stand behind its name."""
    given, folder = _options_and_folder(rest)
    if folder:
        raise InvalidInput(f"{task.name} is drawn, and read from no folder: leave out {folder!r}.")
    taken = options(task.name, task.samples, given)
    return replace(
        task,
        name=f"{task.name}{taken.written}",
        samples=partial(task.samples, **taken.own),
        longest=taken.general.get("longest", task.longest),
        pixels=taken.pixels,
    )


def find_sources(name: str) -> Mapping[str, Sources]:
    """The data sets that a benchmark reads, "milebench_s4(set=ALFRED)" with its options, by name,
    each in the forms in which it is published.

    Raises:
        InvalidInput: there is no such benchmark.
        InvalidParameter: no such option, or a value that it does not take.
    """
    kind, rest = _kind(name)
    if kind not in BENCHMARKS:
        raise InvalidInput(f"no benchmark named {kind!r}. {suggest(kind, BENCHMARKS)}")
    return BENCHMARKS[kind].parts_with(_options_and_folder(rest)[0])


def find_conversations(name: str) -> Mapping[str, str]:
    """Return the conversations in which a benchmark, with its options, asks families of models.

    Raises:
        InvalidInput: there is no such benchmark.
        InvalidParameter: no such option, or a value that it does not take.
    """
    kind, rest = _kind(name)
    if kind in TASKS:
        return {}
    if kind not in BENCHMARKS:
        raise InvalidInput(f"no benchmark named {kind!r}. {suggest(kind, BENCHMARKS)}")
    return BENCHMARKS[kind].conversations_with(_options_and_folder(rest)[0])


def _kind(name: str) -> tuple[str, str]:
    """What stands before the options and the folder, and these."""
    kind = re.split(r"[(=]", name, maxsplit=1)[0]
    return kind, name[len(kind) :]


def _options_and_folder(rest: str) -> tuple[dict[str, Any], str]:
    """Of "(key=value,...)=FOLDER"."""
    match = re.fullmatch(r"(?:\(([^()]*)\))?=?(.*)", rest, re.DOTALL)
    inside, folder = match.groups() if match else ("", "")
    return parse_arguments(inside or ""), folder
