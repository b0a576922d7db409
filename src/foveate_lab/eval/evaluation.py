"""``evaluate()``: many policies on many samples, with one prefill per prompt.

>>> from foveate_lab import evaluate
>>> result = evaluate("demo", "document", methods="snapkv,mixkv", budgets="20%,10%", limit=20)
>>> result.summary[0].score.mean
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from foveate.cli.policies import by_default, with_known_profile
from foveate.data.clip import check_sampling
from foveate.defaults import SEES, DeviceMap
from foveate.errors import InvalidInput, InvalidParameter
from foveate.loading.hardware import versions_of_results
from foveate.loading.model import Loaded
from foveate.policies.policy import Policy
from foveate_lab.defaults import LIMIT, AnyExecutorName, Protocol
from foveate_lab.eval.bundle import seal
from foveate_lab.eval.contenders import check_strictly, contenders, separate
from foveate_lab.eval.executors import Executor, Job, find_executor, lacking
from foveate_lab.eval.executors.client import Client, served_model
from foveate_lab.eval.judge import Judge, find_judge
from foveate_lab.eval.keyed_rows import Key
from foveate_lab.eval.questions import questions
from foveate_lab.eval.results import DAMAGED, ROWS, Results
from foveate_lab.eval.summary import Failure, Rows, SummaryCell, cells, failures
from foveate_lab.eval.task_registry import Task
from foveate_lab.eval.tasks import find_tasks, separate_tasks

Advance = Callable[[str, int, int], object]
"""Progress callback: a task's name, samples answered since the last call, samples of the run."""


@dataclass(frozen=True)
class Evaluation:
    """Results of :func:`evaluate`: one row for each sample and policy, the full cache's included.

    ``configuration`` is the content of ``run.json``. ``folder`` is None without ``out``.
    """

    rows: Rows
    configuration: Mapping[str, Any]
    folder: Path | None

    @cached_property
    def summary(self) -> list[SummaryCell]:
        """Mean score with its 95 % interval, and other means, for each task and policy.

        Raises:
            MissingPackage: scipy is not installed.
        """
        return cells(self.rows)

    @property
    def refused(self) -> list[Failure]:
        """Samples that Foveate refused, counted for each task and policy."""
        return failures(self.rows)


def evaluate(
    model: str | Loaded = SEES,
    tasks: str | Sequence[str | Task] | None = None,
    *,
    methods: str | Sequence[str | Policy] | None = None,
    budgets: str | Sequence[str | float] = (),
    data: Path | str | None = None,
    out: Path | str | None = None,
    fps: float | None = None,
    frames: int | None = None,
    protocol: Protocol = "query-aware",
    limit: int = LIMIT,
    seed: int = 0,
    judge: str | Judge | None = None,
    longest_prompt: int | None = None,
    timed: int = 3,
    batch: int = 1,
    resume: bool = False,
    executor: AnyExecutorName = "local",
    workers: int | None = None,
    url: str | None = None,
    strict: bool = False,
    allow_outside: bool = False,
    trust_remote_code: bool = False,
    device_map: DeviceMap | None = None,
    advance: Advance | None = None,
    warn: Callable[[str], object] = warnings.warn,
) -> Evaluation:
    """Answer samples of tasks under many policies, and score the answers.

    Args:
        model: a directory, a name on the hub, or a loaded model.
        tasks: names with options, such as "chart" or "docvqa(longest=16)=/data/docvqa", in one text
            with commas or in a list, or :class:`Task` objects. By default "document".
        methods: specs or policies, "oracle" among them; by default those of ``foveate eval``.
        budgets: replace the budgets of all methods. 20 % for a method without any.
        data: JSON lines with questions of your own, beside ``tasks`` or alone.
        out: folder for the results, written answer by answer. Without it nothing is stored.
        fps: frames per second to sample from videos.
        frames: number of frames to sample from each video instead.
        protocol: whether the question is known when the prompt is compressed.
        limit: samples of each task.
        seed: random seed for drawing them.
        judge: a language model that grades answers, or its "module:callable".
        longest_prompt: tokens, images counted; longer prompts lose their middle.
        timed: samples of each task that are timed, one by one.
        batch: prompts answered together; timed samples are answered alone.
        resume: continue the results in ``out``; refused samples are tried again.
        executor: "local", which is this process, "ray", or "http".
        workers: workers of the cluster; by default one per GPU, or per machine. Of "http" the
            number of samples at a time, 8 by default.
        url: server of "http", such as http://localhost:8000/v1. ``model`` is its name there.
        strict: refuse budgets below what a method always keeps, instead of raising them.
        allow_outside: allow data to name files outside its folder.
        trust_remote_code: run code that comes with the model.
        device_map: placement of weights on devices, as in transformers.
        advance: called after each sample, for a progress bar.
        warn: called with warnings about the run.

    Raises:
        FoveateError: the run cannot start: an unknown task or method, or a folder with other
            results. A refused sample gives a row with an ``error`` instead.
    """
    if batch > 1 and timed >= limit:
        raise InvalidParameter(
            f"--timed {timed} answers all of {limit} samples one by one, so none is left for "
            f"--batch {batch}. Give --timed 0, or leave --batch out."
        )
    grader = find_judge(judge) if isinstance(judge, str) else judge
    chosen = _tasks(tasks, data, fps, frames, grader, allow_outside)
    for task in chosen:
        if task.unjudged:
            warn(
                f"{task.name}: no --judge, so its scores stay empty; only differences from the "
                "full cache are measured."
            )
    name = model if isinstance(model, str) else model.name
    if executor == "http":
        name = served_model(Client(url), name)
    specs = _specs(name, methods, budgets)
    if strict:
        check_strictly(specs)
    configuration = {
        "model": name,
        "tasks": [task.name for task in chosen],
        "specs": specs,
        "protocol": protocol,
        "limit": limit,
        "seed": seed,
        "judge": _judge_name(judge),
        "longest_prompt": longest_prompt,
        "timed": timed,
        "batch": batch,
        "strict": strict,
        "versions": versions_of_results(),
    }
    loading = None if isinstance(model, str) else lambda: model
    runner = find_executor(
        executor, name, protocol, workers, trust_remote_code, device_map, loading=loading, url=url
    )
    with ExitStack() as stack:
        folder = Path(out or stack.enter_context(TemporaryDirectory()))
        results = stack.enter_context(Results(folder, configuration, resume=resume))
        if results.damaged:
            warn(
                f"{folder / ROWS}: {len(results.damaged)} damaged line(s) moved to {DAMAGED}; "
                "their samples are answered again."
            )
        _answer(chosen, configuration, runner, results, advance or (lambda *counts: None))
        seal(folder, results.rows)
    return Evaluation(results.rows, configuration, Path(out) if out else None)


def _answer(
    chosen: Sequence[Task],
    configuration: Mapping[str, Any],
    runner: Executor,
    results: Results,
    advance: Advance,
) -> None:
    """Add the missing rows, then sort all rows by task, sample and spec."""
    order: list[Key] = []
    total = len(chosen) * configuration["limit"]

    def missing_jobs() -> Iterator[Job]:
        """Yield jobs that lack an answer, and count the others as done."""
        for job in _jobs(chosen, configuration):
            order.extend(job.keys)
            if todo := lacking(job, results):
                yield todo
            else:
                advance(job.task.name, len(job.samples), total)

    with runner as execute:
        advance(chosen[0].name if chosen else "", 0, total)
        for job, rows in execute(missing_jobs()):
            for row in rows:
                results.add(row)
            advance(job.task.name, len(job.samples), total)
    results.sort(order)


def _jobs(chosen: Sequence[Task], run: Mapping[str, Any]) -> Iterator[Job]:
    """Yield jobs of one sample each while samples are timed, then of batches."""
    for task in chosen:
        samples = iter(task.samples(run["limit"], run["seed"]))
        job = partial(Job, task, longest_prompt=run["longest_prompt"], strict=run["strict"])
        for sample in islice(samples, run["timed"]):
            yield job(sample=sample, specs=tuple(run["specs"]), timed=True)
        while batch := tuple(islice(samples, run["batch"])):
            first, *beside = batch
            yield job(sample=first, specs=tuple(run["specs"]), timed=False, beside=tuple(beside))


def _specs(
    model: str, methods: str | Sequence[str | Policy] | None, budgets: str | Sequence[str | float]
) -> list[str]:
    """Return the specs of all methods at all budgets."""
    chosen = by_default(model) if methods is None else methods
    listed = separate(chosen) if isinstance(chosen, str) else chosen
    specs = [method.spec if isinstance(method, Policy) else method for method in listed]
    amounts = separate(budgets) if isinstance(budgets, str) else list(map(str, budgets))
    return contenders([with_known_profile(spec, model) for spec in specs], amounts)


def _judge_name(judge: str | Judge | None) -> str | None:
    """Return the judge as "module:callable"."""
    if judge is None or isinstance(judge, str):
        return judge
    return f"{judge.__module__}:{getattr(judge, '__qualname__', type(judge).__qualname__)}"


def _tasks(
    tasks: str | Sequence[str | Task] | None,
    data: Path | str | None,
    fps: float | None,
    frames: int | None,
    judge: Judge | None,
    outside: bool,
) -> list[Task]:
    """Find the named tasks, then the task of a data file."""
    check_sampling(fps, frames)
    rate = int(fps) if fps is not None and fps == int(fps) else fps  # as tasks' names have it
    options = {"fps": rate, "frames": frames}
    sampling = {name: value for name, value in options.items() if value is not None}
    if tasks is None:
        tasks = "document" if data is None else ()
    names = separate_tasks(tasks) if isinstance(tasks, str) else tasks
    chosen: list[Task] = []
    for name in names:
        found = [name] if isinstance(name, Task) else find_tasks(name, judge, outside, sampling)
        chosen += found
    if data is not None:
        own = questions(Path(data), fps=rate, frames=frames, outside=outside)
        if any(task.name == own.name for task in chosen):
            raise InvalidInput(
                f"a task is named {own.name!r} like {str(data)!r}: give the file another name."
            )
        chosen.append(own)
    for name, value in sampling.items():
        if not any(f"{name}=" in task.name for task in chosen):
            raise InvalidInput(
                f"--{name} {value} is for videos, and no task has any. Give --data FILE with "
                "videos, or a video benchmark."
            )
    return chosen
