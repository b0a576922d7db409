"""What a folder holds of the data of experiments: told before any model is loaded."""

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
from foveate_lab.reproduce.resources import toml
from foveate_lab.reproduce.setting import folder_of

LETTERS = 60  # of a question that are shown


class DataSet(NamedTuple):
    """A data set that a benchmark reads; ``name`` tells it from others of the same benchmark.
    ``form`` is who publishes it so, ``questions`` their number, and that of files where a text is
    read whole. ``missing`` says what is wrong; the rest is empty then.
    """

    name: str
    form: str = ""
    split: str = ""
    questions: int = 0
    missing: str = ""


class BenchmarkFolder(NamedTuple):
    """What there is of a benchmark: its parts, and its first sample. ``missing`` says what keeps
    it from being asked, and ``address`` where the data are.
    """

    task: str
    parts: tuple[DataSet, ...]
    first: str
    missing: str
    address: str

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {**self._asdict(), "parts": [one._asdict() for one in self.parts]}


class Checked(NamedTuple):
    """An experiment, and what there is of each benchmark that it reads."""

    experiment: Experiment
    folders: tuple[BenchmarkFolder, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        """The benchmarks that cannot be asked."""
        return tuple(one.task for one in self.folders if one.missing)


def check(
    experiments: Sequence[Experiment], data: Path, *, outside: bool = False
) -> Iterator[Checked]:
    """What ``data``, a folder with a folder for each benchmark, holds of each experiment's data.
    Questions are counted and the first of each benchmark is read, with its images.
    """
    known: dict[str, BenchmarkFolder] = {}
    for experiment in experiments:
        for task in read_by(experiment):
            if task not in known:
                known[task] = _found(task, data, outside)
        yield Checked(experiment, tuple(known[task] for task in read_by(experiment)))


def read_by(experiment: Experiment) -> list[str]:
    """The benchmarks that an experiment reads, those of its profiles among them."""
    measured = [one.task for one in experiment.calibrations.values() if one.task]
    return list(dict.fromkeys((*experiment.trial.tasks(), *measured)))


def _found(task: str, data: Path, outside: bool) -> BenchmarkFolder:
    name = folder_of(task)
    place, address = data / name, where_data(name)
    if not place.is_dir():
        return BenchmarkFolder(task, (), "", f"the folder {str(place)!r} does not exist", address)
    folder = Folder(place, outside)
    parts = tuple(_part(name, sources, folder) for name, sources in find_sources(task).items())
    missing = next((one.missing for one in parts if one.missing), "")
    first = ""
    try:
        sample = next(iter(find_task(f"{task}={place}", outside=outside).samples(1, 0)), None)
        first = _shown(sample) if sample else ""
        missing = missing or ("" if sample else f"{str(place)!r} holds no question of {task}")
    except FoveateError as error:
        missing = str(error)
    return BenchmarkFolder(task, parts, first, missing, address)


def where_data(folder: str) -> str:
    """Return a benchmark's folder in the data folder, and where what is in it is found."""
    return f"{folder}/: {toml('sources')[folder]}"


def _part(name: str, sources: Sources, folder: Folder) -> DataSet:
    try:
        source, paths = sources.chosen(folder)
        return DataSet(name, source.publisher, source.split(paths), source.count(paths))
    except FoveateError as error:
        return DataSet(name, missing=str(error))


def _shown(sample: Sample) -> str:
    """Its name, the sizes of its images, how its question begins, and an answer."""
    sizes = ", ".join(f"{image.width} x {image.height}" for image in sample.images[:2])
    more = f" and {len(sample.images) - 2} more" if len(sample.images) > 2 else ""
    question = " ".join(sample.question.split())[:LETTERS]
    answer = " ".join(sample.answers[0].split())[:LETTERS] if sample.answers else ""
    images = f" ({sizes}{more})" if sizes else ""
    return f"{sample.name}{images}: {question} -> {answer}"
