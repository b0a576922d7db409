"""A folder of reproductions: what experiments find in it, and what answers for them."""

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
from foveate_lab.eval.held import Key
from foveate_lab.eval.judge import Judge
from foveate_lab.reproduce.ask import (
    WHOLE,
    Ask,
    Asked,
    Drawn,
    Part,
    digests,
    keys,
    merged,
    note_drawn,
)
from foveate_lab.reproduce.calibrations import CalibrationRun
from foveate_lab.reproduce.experiment import Experiment
from foveate_lab.reproduce.models import MODELS, Place, places, stand_ins
from foveate_lab.reproduce.published import PublishedProfile
from foveate_lab.reproduce.registry import EXPERIMENTS
from foveate_lab.reproduce.running.progress import Step
from foveate_lab.reproduce.running.rows import Rows
from foveate_lab.reproduce.setting import Say, Setting

STAND_IN = "stand-in"
NOTHING: Asked = MappingProxyType({})


@dataclass
class Lab(AbstractContextManager["Lab"]):
    """A folder of reproductions: what is there is gone on with.

    Rows belong to a model, so experiments that ask it the same share them, and a prompt is read
    once for all of them. ``models`` are places as the command line takes them, ``data`` is the
    folder with the benchmarks' folders; ``small`` a stand-in. One model is held at a time.
    ``executor`` and its ``workers`` give the answers whose time is not taken. ``part`` of the
    samples is asked, in its batches. ``read_only`` only looks at what is there, without a lock.

    ``read_by`` has what kept data from being read, by experiment, and ``unmeasured`` why specs have
    no profile. Until it is left, no other process can write its results.
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
    _loaded: dict[Place, Loaded] = field(default_factory=dict, repr=False)
    _drawn: dict[tuple[str, int], Drawn] = field(default_factory=dict, repr=False)
    _digests: dict[Place, str | None] = field(default_factory=dict, repr=False)
    read_by: dict[str, dict[Ask, str]] = field(default_factory=dict, repr=False)  # by experiment
    unmeasured: dict[Place, dict[str, str]] = field(default_factory=dict, repr=False)

    def __exit__(self, *error: object) -> None:
        self.rows.close()

    def seal(self) -> None:
        """Gives the rows of each model a manifest, so that they can be handed on, and notes digests
        of the data that they were asked of.

        Raises:
            CannotWrite: the disk is full, or the folder is not to be written to.
        """
        self.rows.seal()
        note_drawn(self.out, digests(self._drawn))

    def settings(self, experiment: Experiment) -> list[Setting]:
        """What there is of an experiment, model by model, to be shown."""
        settings = [one for step in self.steps(experiment) for one in self.each(step)]
        return sorted(settings, key=lambda one: experiment.models.index(one.model))

    def keys(self, steps: Sequence[Step]) -> Iterator[Key]:
        """All rows that steps are made of."""
        for step in steps:
            for setting in self.each(step):
                for ask, specs in step.experiment.trial.asks(setting).items():
                    yield from keys(ask, specs, setting.names(ask), setting.part)
                yield from step.experiment.trial.measured(setting)

    def steps(self, experiment: Experiment) -> list[Step]:
        """An experiment, by the places of its models."""
        names = experiment.models
        where = stand_ins(names) if self.small else places(names, self.models)
        by_place: dict[Place, list[str]] = {}
        for name, place in where.items():
            pads = MODELS[name].pad_images and not self.small  # the stand-in has its own processor
            by_place.setdefault(Place(place, pads), []).append(name)
        return [Step(experiment, at, tuple(mine), pads) for (at, pads), mine in by_place.items()]

    def asks(self, steps: Sequence[Step], model: str = "") -> dict[Ask, dict[str, str]]:
        """All that is asked of the model of these steps, or what those ask that call it so."""
        return merged(
            step.experiment.trial.asks(setting)
            for step in steps
            for setting in self.each(step)
            if model in ("", setting.model)
        )

    def each(
        self, step: Step, along: Asked = NOTHING, say: Say = lambda what: None
    ) -> list[Setting]:
        """The settings of a step, one for each of its models."""
        place = Place(step.place, step.pad_images)
        return [
            Setting(
                model=name,
                place=place.at,
                data=self.data,
                results=self.rows.of(place),
                limit=self.limit,
                seed=self.seed,
                small=self.small,
                load=lambda: self._load(place),
                profiles=(self.out / "profiles" / place.folder).resolve(),
                calibrations=self._calibrations,
                along=along,
                raised=self._raised,
                say=say,
                judge=self.judge,
                outside=self.outside,
                read=self.read_by.setdefault(step.experiment.id, {}),
                unmeasured=self.unmeasured.setdefault(place, {}),
                part=self.part,
                drawn=self._drawn,
            )
            for name in step.models
        ]

    @cached_property
    def rows(self) -> Rows:
        """Of each model."""
        return Rows(self.out, self.configuration, self.read_only)

    @cached_property
    def _calibrations(self) -> dict[str, CalibrationRun | PublishedProfile]:
        """Of all experiments: a name is of one."""
        return {n: one for each in self.experiments for n, one in each.calibrations.items()}

    @cached_property
    def _raised(self) -> frozenset[str]:
        """Of all that there are: answers are shared, and are to be the same whichever are run."""
        known = (*self.experiments, *EXPERIMENTS.values())
        return frozenset(spec for one in known for spec in one.trial.raised())

    def _weights(self, place: Place) -> str | None:
        if place not in self._digests:
            self._digests[place] = place.weights
        return self._digests[place]

    def configuration(self, place: Place) -> dict[str, Any]:
        """What rows of a model are made with, and have to agree in."""
        return {
            "model": place.at,
            # LLaVA-1.5's rows of before its authors' conversations had other prompts
            **({"pad_images": True, "prompts": "authors"} if place.pad_images else {}),
            **({"weights": weights} if (weights := self._weights(place)) else {}),
            "limit": self.limit,
            "seed": self.seed,
            "batch": self.part.batch,
            STAND_IN: self.small,
            "versions": versions_of_results(),
        }

    def executed(self, place: Place) -> Executor:
        """What answers. Workers get the memory of this process's model, which is given back."""
        if self.executor != "local":
            self._loaded.clear()
            torch.cuda.empty_cache()
        return find_executor(
            self.executor,
            place.at,
            "query-aware",
            self.workers,
            self.trust_remote_code,
            self.device_map,
            pad_images=place.pad_images,
            loading=lambda: self._load(place),
        )

    def _load(self, place: Place) -> Loaded:
        if place not in self._loaded:
            self._loaded.clear()
            self._loaded[place] = place.load(self.trust_remote_code, self.device_map)
        return self._loaded[place]
