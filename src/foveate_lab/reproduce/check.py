"""Check of a data folder, which needs no model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from foveate.data import Folder
from foveate.errors import FoveateError
from foveate.prompts.sample import Sample
from foveate_lab.eval.benchmarks.sources import Sources
from foveate_lab.eval.tasks import find_sources, find_task
from foveate_lab.reproduce.experiment import Experiment
from foveate_lab.reproduce.published import PublishedProfile
from foveate_lab.reproduce.resources import toml
from foveate_lab.reproduce.setting import folder_of

LETTERS = 60  # most letters of a question in the output


class DataSet(NamedTuple):
    """A data set that a benchmark reads; ``name`` distinguishes it from others of the benchmark.
    ``form`` is who publishes it so, ``questions`` their number, and that of files where a text is
    read whole. ``published`` are the sizes of the whole set, by form; none if unknown.
    ``missing`` says what is wrong; the rest is empty then.
    """

    name: str
    form: str = ""
    split: str = ""
    questions: int = 0
    missing: str = ""
    published: tuple[int, ...] = ()

    @property
    def incomplete(self) -> bool:
        """True if the number of questions is not that of the published set."""
        return bool(not self.missing and self.published and self.questions not in self.published)


class BenchmarkFolder(NamedTuple):
    """A benchmark's folder: its data sets and first sample. ``missing`` says why it cannot be run,
    ``address`` is where the data are published.
    """

    task: str
    parts: tuple[DataSet, ...]
    first: str
    missing: str
    address: str

    @property
    def incomplete(self) -> bool:
        """True if a data set has another number of questions than the published one."""
        return any(part.incomplete for part in self.parts)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON takes them."""
        return {**self._asdict(), "parts": [part._asdict() for part in self.parts]}


class Checked(NamedTuple):
    """An experiment and the folders of the benchmarks that it reads. ``unpublished`` are the
    profiles of its authors that are missing; lines that need them stay empty.
    """

    experiment: Experiment
    folders: tuple[BenchmarkFolder, ...]
    unpublished: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """Benchmarks that cannot be run."""
        return tuple(folder.task for folder in self.folders if folder.missing)

    @property
    def incomplete(self) -> tuple[str, ...]:
        """Benchmarks whose number of questions is not the published one."""
        return tuple(
            folder.task for folder in self.folders if folder.incomplete and not folder.missing
        )

    @property
    def is_complete(self) -> bool:
        """True if nothing is missing or incomplete."""
        return not (self.missing or self.incomplete or self.unpublished)


def check(
    experiments: Sequence[Experiment], data: Path, *, outside: bool = False
) -> Iterator[Checked]:
    """Yield each experiment with the state of its data in ``data``, a folder with one folder for
    each benchmark. Counts questions and reads each benchmark's first sample with its images.
    """
    known: dict[str, BenchmarkFolder] = {}
    for experiment in experiments:
        for task in benchmarks_of(experiment):
            if task not in known:
                known[task] = _inspect(task, data, outside)
        folders = tuple(known[task] for task in benchmarks_of(experiment))
        yield Checked(experiment, folders, tuple(_unpublished(experiment, data)))


def _unpublished(experiment: Experiment, data: Path) -> Iterator[str]:
    """Yield the files of published profiles that are not in the data folder."""
    budgets = [at for at in getattr(experiment.trial, "budgets", ()) if at] or [""]
    profiles = [
        profile
        for profile in experiment.calibrations.values()
        if isinstance(profile, PublishedProfile)
    ]
    paths = dict.fromkeys(
        profile.source_path(data, model, budget)
        for profile in profiles
        for model in experiment.models
        for budget in budgets
        if model in profile.files
    )
    yield from (path.name for path in paths if not path.is_file())


def benchmarks_of(experiment: Experiment) -> list[str]:
    """Return the benchmarks that an experiment and its profiles read."""
    measured = [run.task for run in experiment.calibrations.values() if run.task]
    return list(dict.fromkeys((*experiment.trial.tasks(), *measured)))


def _inspect(task: str, data: Path, outside: bool) -> BenchmarkFolder:
    name = folder_of(task)
    path, address = data / name, data_address(name)
    if not path.is_dir():
        return BenchmarkFolder(task, (), "", f"the folder {str(path)!r} does not exist", address)
    folder = Folder(path, outside)
    parts = tuple(_part(task, *named, folder) for named in find_sources(task).items())
    missing = next((part.missing for part in parts if part.missing), "")
    first = ""
    try:
        sample = next(iter(find_task(f"{task}={path}", outside=outside).samples(1, 0)), None)
        first = _describe(sample) if sample else ""
        missing = missing or ("" if sample else f"{str(path)!r} holds no question of {task}")
    except FoveateError as error:
        missing = str(error)
    return BenchmarkFolder(task, parts, first, missing, address)


def data_address(folder: str) -> str:
    """Return a benchmark's folder in the data folder, and the address of its data."""
    return f"{folder}/: {toml('sources')[folder]}"


def _part(task: str, name: str, sources: Sources, folder: Folder) -> DataSet:
    published = toml("sizes").get(name or task.partition("(")[0], ())
    try:
        source, paths = sources.chosen(folder)
        split, count = source.split(paths), source.count(paths)
        return DataSet(name, source.publisher, split, count, published=published)
    except FoveateError as error:
        return DataSet(name, missing=str(error))


def _describe(sample: Sample) -> str:
    """Describe a sample: name, image sizes, begin of the question, and an answer."""
    sizes = ", ".join(f"{image.width} x {image.height}" for image in sample.images[:2])
    more = f" and {len(sample.images) - 2} more" if len(sample.images) > 2 else ""
    question = " ".join(sample.question.split())[:LETTERS]
    answer = " ".join(sample.answers[0].split())[:LETTERS] if sample.answers else ""
    images = f" ({sizes}{more})" if sizes else ""
    return f"{sample.name}{images}: {question} -> {answer}"
