"""A folder of reproductions: its rows and profiles, and the models that answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from foveate.defaults import DeviceMap
from foveate.loading.hardware import versions_of_results
from foveate.loading.model import Loaded
from foveate_lab.defaults import ExecutorName
from foveate_lab.eval.executors import Executor, find_executor
from foveate_lab.eval.judge import Judge
from foveate_lab.eval.keyed_rows import Key
from foveate_lab.reproduce.calibrations import CalibrationRun
from foveate_lab.reproduce.experiment import Experiment
from foveate_lab.reproduce.models import MODELS, Place, sources_of, stand_ins
from foveate_lab.reproduce.published import PublishedProfile
from foveate_lab.reproduce.registry import EXPERIMENTS
from foveate_lab.reproduce.running.progress import Step
from foveate_lab.reproduce.running.rows import Rows
from foveate_lab.reproduce.setting import Notify, Setting
from foveate_lab.reproduce.task_request import (
    WHOLE,
    Drawn,
    Part,
    Requests,
    TaskRequest,
    digests,
    keys,
    merged,
    note_drawn,
)

STAND_IN = "stand-in"
NOTHING: Requests = MappingProxyType({})


@dataclass
class Lab(AbstractContextManager["Lab"]):
    """A folder of reproductions; runs continue where they stopped.

    Rows belong to a model, so experiments with the same requests share them, and a prompt is read
    once for all. ``models`` are NAME=PLACE as on the command line, ``data`` is the folder with the
    benchmarks' folders; ``small`` is a stand-in. One model is loaded at a time. ``executor`` and
    its ``workers`` give answers that are not timed. ``part`` says which samples run, in its
    batches. ``read_only`` takes no lock and writes nothing. ``published`` is a copy of the authors'
    repository, to compare with.

    ``read_by`` has why data could not be read, by experiment, and ``unmeasured`` why specs have no
    profile. Until the lab is left, no other process can write its results.
    """

    experiments: Sequence[Experiment]
    out: Path
    data: Path
    models: Sequence[str] = ()
    limit: int = 10_000
    seed: int = 0
    small: bool = False
    judge: Judge | None = None
    outside: bool = False
    trust_remote_code: bool = False
    device_map: DeviceMap | None = None
    executor: ExecutorName = "local"
    workers: int | None = None
    part: Part = WHOLE
    read_only: bool = False
    published: Path | None = None
    _loaded: dict[Place, Loaded] = field(default_factory=dict, repr=False)
    _drawn: dict[tuple[str, int], Drawn] = field(default_factory=dict, repr=False)
    _digests: dict[Place, str | None] = field(default_factory=dict, repr=False)
    read_by: dict[str, dict[TaskRequest, str]] = field(default_factory=dict, repr=False)
    unmeasured: dict[Place, dict[str, str]] = field(default_factory=dict, repr=False)

    def __exit__(self, *error: object) -> None:
        self.rows.close()

    def seal(self) -> None:
        """Write a manifest for the rows of each model, and digests of the data that they are of.

        Raises:
            CannotWrite: the disk is full, or the folder is not to be written to.
        """
        self.rows.seal()
        note_drawn(self.out, digests(self._drawn))

    def settings(self, experiment: Experiment) -> list[Setting]:
        """Return an experiment's settings, in the order of its models."""
        settings = [setting for step in self.steps(experiment) for setting in self.each(step)]
        return sorted(settings, key=lambda setting: experiment.models.index(setting.model))

    def keys(self, steps: Sequence[Step]) -> Iterator[Key]:
        """Yield the keys of all rows of these steps."""
        for step in steps:
            for setting in self.each(step):
                for request, specs in step.experiment.trial.requests(setting).items():
                    yield from keys(request, specs, setting.names(request), setting.part)
                yield from step.experiment.trial.measured(setting)

    def steps(self, experiment: Experiment) -> list[Step]:
        """Return an experiment's steps, one for each location of its models."""
        names = experiment.models
        where = stand_ins(names) if self.small else sources_of(names, self.models)
        by_place: dict[Place, list[str]] = {}
        for name, location in where.items():
            pads = (
                MODELS[name].pad_images and not self.small
            )  # the stand-in's processor takes images as they are
            by_place.setdefault(Place(location, pads), []).append(name)
        return [Step(experiment, at, tuple(mine), pads) for (at, pads), mine in by_place.items()]

    def requests(self, steps: Sequence[Step], model: str = "") -> dict[TaskRequest, dict[str, str]]:
        """Return all requests to the model of these steps; with ``model``, those that name it
        so.
        """
        return merged(
            step.experiment.trial.requests(setting)
            for step in steps
            for setting in self.each(step)
            if model in ("", setting.model)
        )

    def each(
        self, step: Step, along: Requests = NOTHING, notify: Notify = lambda what: None
    ) -> list[Setting]:
        """Return the settings of a step, one for each of its models."""
        location = Place(step.location, step.pad_images)
        return [
            Setting(
                model=name,
                location=location.at,
                data=self.data,
                results=self.rows.of(location),
                limit=self.limit,
                seed=self.seed,
                small=self.small,
                load=lambda: self._load(location),
                profiles=(self.out / "profiles" / location.folder).resolve(),
                calibrations=self._calibrations,
                along=along,
                raised=self._raised,
                notify=notify,
                judge=self.judge,
                outside=self.outside,
                read=self.read_by.setdefault(step.experiment.id, {}),
                unmeasured=self.unmeasured.setdefault(location, {}),
                part=self.part,
                drawn=self._drawn,
            )
            for name in step.models
        ]

    @cached_property
    def rows(self) -> Rows:
        """Rows of all models."""
        return Rows(self.out, self.configuration, self.read_only)

    @cached_property
    def _calibrations(self) -> dict[str, CalibrationRun | PublishedProfile]:
        """Profiles of all experiments; a name means the same in each."""
        return {n: run for each in self.experiments for n, run in each.calibrations.items()}

    @cached_property
    def _raised(self) -> frozenset[str]:
        """Specs of all known experiments: answers are shared, so they must not depend on which
        run.
        """
        known = (*self.experiments, *EXPERIMENTS.values())
        return frozenset(spec for experiment in known for spec in experiment.trial.raised())

    def _weights(self, location: Place) -> str | None:
        if location not in self._digests:
            self._digests[location] = location.weights
        return self._digests[location]

    def configuration(self, location: Place) -> dict[str, Any]:
        """Return the settings in which all rows of a model have to agree."""
        return {
            "model": location.at,
            # LLaVA-1.5's rows of before its authors' conversations had other prompts
            **({"pad_images": True, "prompts": "authors"} if location.pad_images else {}),
            **({"weights": weights} if (weights := self._weights(location)) else {}),
            "limit": self.limit,
            "seed": self.seed,
            "batch": self.part.batch,
            STAND_IN: self.small,
            "versions": versions_of_results(),
        }

    def executed(self, location: Place) -> Executor:
        """Return the executor that answers. Cluster workers get the memory of this process's
        model.
        """
        if self.executor != "local":
            self._loaded.clear()
            torch.cuda.empty_cache()
        return find_executor(
            self.executor,
            location.at,
            "query-aware",
            self.workers,
            self.trust_remote_code,
            self.device_map,
            pad_images=location.pad_images,
            loading=lambda: self._load(location),
        )

    def _load(self, location: Place) -> Loaded:
        if location not in self._loaded:
            self._loaded.clear()
            self._loaded[location] = location.load(self.trust_remote_code, self.device_map)
        return self._loaded[location]
