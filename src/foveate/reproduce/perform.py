"""Running experiments: model by model, part by part, row by row."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foveate.errors import InvalidInput
from foveate.eval.bundle import seal
from foveate.eval.executors import versions
from foveate.eval.judge import Judge
from foveate.eval.model import DeviceMap, Loaded, load
from foveate.eval.results import CONFIGURATION, Results, read
from foveate.reproduce.experiment import Experiment
from foveate.reproduce.models import places, stand_ins
from foveate.reproduce.setting import Setting

STAND_IN = "stand-in"


@dataclass
class Lab:
    """A folder of reproductions: what is there is gone on with.

    Rows belong to a model, so experiments that ask it the same share them. ``models`` are places as
    the command line takes them, ``data`` is the folder with the benchmarks' folders; ``small`` a
    stand-in. One model is held at a time.
    """

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
    _loaded: dict[str, Loaded] = field(default_factory=dict, repr=False)

    def perform(
        self, experiment: Experiment, tick: Callable[[str], object] = lambda what: None
    ) -> list[dict[str, Any]]:
        """Runs what is missing of an experiment, and gives back the rows that were refused.

        Raises:
            FoveateError: data, a model or a profile that is not there.
        """
        failed = []
        for place, names in self._by_place(experiment).items():
            with self._results(place) as results:
                for name in names:
                    setting = self._setting(experiment, name, place, results)
                    for part in experiment.parts:
                        for row in part.run(setting) if name in part.models else ():
                            results.add(row)
                            failed += [row] if "error" in row else []
                            tick(f"{experiment.id}, {name}: {row['task']}")
        return failed

    def seal(self) -> None:
        """Gives the rows of each model a manifest, so that they can be handed on.

        Raises:
            CannotWrite: the disk is full, or the folder is not to be written to.
        """
        for configuration in sorted((self.out / "rows").glob(f"*/{CONFIGURATION}")):
            seal(configuration.parent, read(configuration.parent).rows)

    @contextmanager
    def settings(self, experiment: Experiment) -> Iterator[list[Setting]]:
        """What there is of an experiment, model by model, to be shown."""
        found: list[Setting] = []
        opened: list[Results] = []
        try:
            for place, names in self._by_place(experiment).items():
                results = self._results(place)
                opened.append(results)
                found += [self._setting(experiment, one, place, results) for one in names]
            yield sorted(found, key=lambda one: experiment.models.index(one.model))
        finally:
            for results in opened:
                results.__exit__()

    def _by_place(self, experiment: Experiment) -> dict[str, list[str]]:
        names = experiment.models
        where = stand_ins(names) if self.small else places(names, self.models)
        found: dict[str, list[str]] = {}
        for name, place in where.items():
            found.setdefault(place, []).append(name)
        return found

    def _results(self, place: str) -> Results:
        folder = self.out / "rows" / slug(place)
        configuration = {
            "model": place,
            "limit": self.limit,
            "seed": self.seed,
            STAND_IN: self.small,
            "versions": versions(),
        }
        return Results(folder, configuration, resume=True)

    def _setting(self, experiment: Experiment, name: str, place: str, results: Results) -> Setting:
        return Setting(
            model=name,
            place=place,
            data=self.data,
            results=results,
            limit=self.limit,
            seed=self.seed,
            small=self.small,
            load=lambda: self._load(place),
            profiles=self.out / "profiles" / slug(place),
            calibrations=experiment.calibrations,
            judge=self.judge,
            outside=self.outside,
        )

    def _load(self, place: str) -> Loaded:
        if place not in self._loaded:
            if not self.small:
                self._loaded.clear()
            self._loaded[place] = load(place, self.trust_remote_code, self.device_map)
        return self._loaded[place]


def slug(place: str) -> str:
    """A place as the name of a folder."""
    found = re.sub(r"[^\w.-]+", "_", place.rstrip("/").rpartition("/")[2]).strip("._")
    if not found:
        raise InvalidInput(f"{place!r} is no place of a model.")
    return found
