"""Tasks that need only this package or, for real text, photographs and pages, another package."""

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
    """Split a list of tasks such as "chart,milebench_s4(set=ALFRED,longest=64)=/data/milebench".

    Raises:
        InvalidInput: the list is empty.
    """
    # commas outside parentheses
    names = [name.strip() for name in re.split(r",(?![^()]*\))", text) if name.strip()]
    if not names:
        raise InvalidInput(f"{text!r} names no task. Known: {', '.join((*TASKS, *BENCHMARKS))}.")
    return names


def find_tasks(
    name: str,
    judge: Judge | None = None,
    outside: bool = False,
    video_options: Mapping[str, int | float] = NONE,
) -> list[Task]:
    """Return the task of a name, or all tasks of a benchmark that has several.
    "milebench=/data/milebench" is milebench_t1, milebench_t2 and so on, with the same options.

    Raises:
        InvalidInput: an unknown task, or no such folder.
        InvalidParameter: an unknown option, or a value that it does not allow.
    """
    kind, rest = _kind(name)
    members = [benchmark for benchmark in BENCHMARKS if benchmark.startswith(f"{kind}_")]
    if kind in BENCHMARKS or not members:
        return [find_task(name, judge, outside, video_options)]
    return [find_task(f"{benchmark}{rest}", judge, outside, video_options) for benchmark in members]


def find_task(
    name: str,
    judge: Judge | None = None,
    outside: bool = False,
    video_options: Mapping[str, int | float] = NONE,
) -> Task:
    """Return the task of a name, for example "pages", "pages(pages=8)" or
    "docvqa(longest=16)=/data/docvqa". The judge scores benchmarks that need one. Files that a
    benchmark's data name must be in its folder, unless ``outside``. ``video_options`` (``fps`` or
    ``frames``) apply to benchmarks with videos.

    Raises:
        InvalidInput: an unknown task, or no such folder.
        InvalidParameter: an unknown option, a value that it does not allow, or frames set twice.
        InvalidSpec: options not of the form key=value.
    """
    kind, rest = _kind(name)
    if kind in BENCHMARKS:
        benchmark, (arguments, folder) = BENCHMARKS[kind], _options_and_folder(rest)
        if not folder:
            raise InvalidInput(
                f"{kind} is read from a folder that holds {benchmark.contents}: "
                f"write {kind}=FOLDER."
            )
        arguments = _with_frames(name, arguments, video_options, parameters(benchmark.read))
        path = Path(folder).expanduser()
        return benchmark.task(path, judge, outside=outside, overrides=arguments)
    if kind not in TASKS:
        raise InvalidInput(f"no task named {name!r}. {suggest(kind, [*TASKS, *BENCHMARKS])}")
    return _with_options(TASKS[kind], rest)


def _with_frames(
    name: str,
    arguments: Mapping[str, Any],
    video_options: Mapping[str, int | float],
    known: Container[str],
) -> dict[str, Any]:
    """Add the video options that a benchmark takes to its arguments."""
    applied = {key: value for key, value in video_options.items() if key in known}
    if applied and (own := [key for key in ("fps", "frames") if key in arguments]):
        raise InvalidParameter(
            f"{name} sets {own[0]} itself, and --{next(iter(applied))} conflicts with it: "
            "leave one out."
        )
    return {**arguments, **applied}


def _with_options(task: Task, rest: str) -> Task:
    """Return a drawn task with the options written after its name."""
    arguments, folder = _options_and_folder(rest)
    if folder:
        raise InvalidInput(
            f"{task.name} is generated, not read from a folder: leave out {folder!r}."
        )
    parsed = options(task.name, task.samples, arguments)
    return replace(
        task,
        name=f"{task.name}{parsed.written}",
        samples=partial(task.samples, **parsed.own),
        longest=parsed.general.get("longest", task.longest),
        pixels=parsed.pixels,
    )


def find_sources(name: str) -> Mapping[str, Sources]:
    """Return the data sets that a benchmark reads, by name, in every published form. The name may
    have options, "milebench_s4(set=ALFRED)".

    Raises:
        InvalidInput: an unknown benchmark.
        InvalidParameter: an unknown option, or a value that it does not allow.
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
    """Split a name into the task and the rest, which is its options and folder."""
    kind = re.split(r"[(=]", name, maxsplit=1)[0]
    return kind, name[len(kind) :]


def _options_and_folder(rest: str) -> tuple[dict[str, Any], str]:
    """Parse the rest of a name, "(key=value,...)=FOLDER"."""
    match = re.fullmatch(r"(?:\(([^()]*)\))?=?(.*)", rest, re.DOTALL)
    inside, folder = match.groups() if match else ("", "")
    return parse_arguments(inside or ""), folder
