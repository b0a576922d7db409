"""Running experiments: model by model, so that each is loaded once; row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from foveate.errors import CannotWrite, FoveateError, InvalidInput
from foveate.eval.bundle import seal
from foveate.eval.executors import versions
from foveate.eval.judge import Judge
from foveate.eval.model import DeviceMap, Loaded
from foveate.eval.results import CONFIGURATION, Results, read
from foveate.reproduce.ask import Ask, Asked
from foveate.reproduce.calibrations import Calibration
from foveate.reproduce.experiment import Experiment
from foveate.reproduce.models import MODELS, places, stand_ins
from foveate.reproduce.place import Place
from foveate.reproduce.progress import Done, Progress, Step
from foveate.reproduce.published import Published
from foveate.reproduce.setting import Say, Setting

STAND_IN = "stand-in"
NOTHING: Asked = MappingProxyType({})
Tell = Callable[[Progress], object]


@dataclass
class Lab(AbstractContextManager["Lab"]):
    """A folder of reproductions: what is there is gone on with.

    Rows belong to a model, so experiments that ask it the same share them, and a prompt is read
    once for all of them. ``models`` are places as the command line takes them, ``data`` is the
    folder with the benchmarks' folders; ``small`` a stand-in. One model is held at a time.

    Until it is left, no other process can write its results.
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
    _loaded: dict[Place, Loaded] = field(default_factory=dict, repr=False)
    _opened: dict[Place, Results] = field(default_factory=dict, repr=False)
    _read: dict[str, dict[Ask, str]] = field(default_factory=dict, repr=False)  # by experiment
    _unmeasured: dict[Place, dict[str, str]] = field(default_factory=dict, repr=False)  # by place

    def __exit__(self, *error: object) -> None:
        for results in self._opened.values():
            results.__exit__()
        self._opened.clear()

    def run(self, tell: Tell = lambda progress: None) -> Done:
        """Runs what is missing of all experiments, and tells of every row and every profile. What
        one experiment lacks does not keep the others.

        Raises:
            FoveateError: data, a model or a profile that is not there, of the only experiment.
            CannotWrite: the disk is full, or the folder is not to be written to.
        """
        done = Done()
        plan = self._plan(done)
        number, count = 0, sum(map(len, plan.values()))
        for steps in plan.values():
            along = self._asked(steps)
            for step in steps:
                number += 1
                if step.experiment.id not in done.missing:
                    self._do(Progress(number, count, step), along, tell, done)
        self._sum_up(done)
        return done

    def _sum_up(self, done: Done) -> None:
        """Notes what data were missing: some leave cells empty, all leave nothing to show."""
        for experiment in self.experiments:
            read = self._read.get(experiment.id, {})
            lacking = {ask.task: why for ask, why in read.items() if why}
            if lacking and all(read.values()) and experiment.id not in done.missing:
                with self._noting(experiment, done):
                    raise InvalidInput(next(iter(lacking.values())))
            else:
                done.left_out.update(lacking)
        for specs in self._unmeasured.values():
            done.left_out.update(specs)

    def seal(self) -> None:
        """Gives the rows of each model a manifest, so that they can be handed on.

        Raises:
            CannotWrite: the disk is full, or the folder is not to be written to.
        """
        for configuration in sorted((self.out / "rows").glob(f"*/{CONFIGURATION}")):
            seal(configuration.parent, read(configuration.parent).rows)

    def settings(self, experiment: Experiment) -> list[Setting]:
        """What there is of an experiment, model by model, to be shown."""
        found = [one for step in self._steps(experiment) for one in self._settings(step)]
        return sorted(found, key=lambda one: experiment.models.index(one.model))

    def _plan(self, done: Done) -> dict[Place, list[Step]]:
        """All steps, place by place."""
        found: dict[Place, list[Step]] = {}
        for experiment in self.experiments:
            with self._noting(experiment, done):
                for step in self._steps(experiment):
                    found.setdefault(Place(step.place, step.pad_images), []).append(step)
        return found

    def _steps(self, experiment: Experiment) -> list[Step]:
        names = experiment.models
        where = stand_ins(names) if self.small else places(names, self.models)
        found: dict[Place, list[str]] = {}
        for name, place in where.items():
            pads = MODELS[name].pad_images and not self.small  # the stand-in has its own processor
            found.setdefault(Place(place, pads), []).append(name)
        return [Step(experiment, at, tuple(mine), pads) for (at, pads), mine in found.items()]

    def _asked(self, steps: Sequence[Step]) -> Asked:
        """All that is asked of the model of these steps."""
        found: dict[Ask, dict[str, str]] = {}
        for step in steps:
            for setting in self._settings(step):
                for ask, specs in step.experiment.trial.asks(setting).items():
                    found.setdefault(ask, {}).update(specs)
        return found

    def _do(self, at: Progress, along: Asked, tell: Tell, done: Done) -> None:
        """One step; what it comes to is noted."""
        rows = 0

        def say(what: str, over: bool = False) -> None:
            tell(at._replace(rows=rows, what=what, over=over))

        with self._noting(at.step.experiment, done):
            for setting in self._settings(at.step, along, say):
                for row in at.step.experiment.trial.run(setting):
                    setting.results.add(row)
                    done.note(row)
                    rows += 1
                    say(row["task"])
        say("", over=True)

    @contextmanager
    def _noting(self, experiment: Experiment, done: Done) -> Iterator[None]:
        """Notes what an experiment lacks; of the only one it is an error."""
        try:
            yield
        except FoveateError as error:
            if len(self.experiments) == 1 or isinstance(error, CannotWrite):
                raise
            done.missing[experiment.id] = str(error)

    def _settings(
        self, step: Step, along: Asked = NOTHING, say: Say = lambda what: None
    ) -> list[Setting]:
        place = Place(step.place, step.pad_images)
        return [
            Setting(
                model=name,
                place=place.at,
                data=self.data,
                results=self._results(place),
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
                read=self._read.setdefault(step.experiment.id, {}),
                unmeasured=self._unmeasured.setdefault(place, {}),
            )
            for name in step.models
        ]

    @cached_property
    def _calibrations(self) -> dict[str, Calibration | Published]:
        """Of all experiments: a name is of one."""
        return {n: one for each in self.experiments for n, one in each.calibrations.items()}

    @cached_property
    def _raised(self) -> frozenset[str]:
        """Of all experiments: answers are shared."""
        return frozenset(spec for one in self.experiments for spec in one.trial.raised())

    def _results(self, place: Place) -> Results:
        configuration = {
            "model": place.at,
            **({"pad_images": True} if place.pad_images else {}),
            "limit": self.limit,
            "seed": self.seed,
            STAND_IN: self.small,
            "versions": versions(),
        }
        if place not in self._opened:
            folder = self.out / "rows" / place.folder
            self._opened[place] = Results(folder, configuration, resume=True)
        return self._opened[place]

    def _load(self, place: Place) -> Loaded:
        if place not in self._loaded:
            self._loaded.clear()
            self._loaded[place] = place.load(self.trust_remote_code, self.device_map)
        return self._loaded[place]
