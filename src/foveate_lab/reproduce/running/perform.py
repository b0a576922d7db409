"""Running experiments: model by model, so that each is loaded once; row by row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from time import monotonic
from typing import Any

from foveate.errors import CannotWrite, ClusterFailed, FoveateError, InvalidInput
from foveate_lab.eval.executors import Execute
from foveate_lab.eval.keyed_rows import key_of
from foveate_lab.reproduce.experiment import Experiment
from foveate_lab.reproduce.models import Place
from foveate_lab.reproduce.running.lab import Lab
from foveate_lab.reproduce.running.progress import Done, Meter, OnProgress, Step
from foveate_lab.reproduce.task_request import Requests, TaskRequest, merged
from foveate_lab.reproduce.trials.answers import calibrate, jobs, unprepared


def perform(lab: Lab, on_progress: OnProgress = lambda progress: None) -> Done:
    """Run what is missing of all experiments, and report every row and profile. What one experiment
    lacks does not stop the others.

    Model by model, profiles come first, then the answers, which the executor shares out, and
    then, in this process alone, what is timed and what is read off prompts: anything beside it
    would change the times. The order of rows does not depend on who made them.

    Raises:
        FoveateError: data, a model or a profile is missing, of the only experiment.
        CannotWrite: the disk is full, or the folder is not to be written to.
        ClusterFailed: no worker of the cluster is left; finished answers stay.
    """
    done = Done()
    plan = planned(lab, done)
    keys = {location: set(lab.keys(steps)) for location, steps in plan.items()}
    there = sum(
        key in lab.rows.of(location) for location, keys_here in keys.items() for key in keys_here
    )
    meter = Meter(there, sum(map(len, keys.values())), on_progress)
    for location, steps in plan.items():
        _Run(lab, location, steps, meter, done).all()
    meter.report("", over=True)
    _sum_up(lab, done)
    lab.rows.sort()
    return done


def planned(lab: Lab, done: Done) -> dict[Place, list[Step]]:
    """Return all steps by location; ``done`` notes why an experiment has none.

    Raises:
        FoveateError: the only experiment has none.
    """
    by_place: dict[Place, list[Step]] = {}
    for experiment in lab.experiments:
        with _noting(lab, [experiment], done):
            for step in lab.steps(experiment):
                by_place.setdefault(Place(step.location, step.pad_images), []).append(step)
    return by_place


@dataclass
class _Run:
    """The run of one model."""

    lab: Lab
    location: Place
    steps: Sequence[Step]
    meter: Meter
    done: Done

    def all(self) -> None:
        with self.meter.not_counted():
            self._prepare()
        self._share_out()
        for step in self._left():
            self._do_alone(step)

    def _left(self) -> list[Step]:
        return [step for step in self.steps if step.experiment.id not in self.done.missing]

    def _prepare(self) -> None:
        """Measure the profiles that missing rows need: of all experiments in one pass, and where
        that fails, one by one.
        """
        shared = {
            name: self.lab.requests(self.steps, name) for step in self.steps for name in step.models
        }
        for step in self.steps:
            with _noting(self.lab, [step.experiment], self.done):
                for setting in self.lab.each(step, notify=self.meter.report):
                    with suppress(FoveateError):
                        setting.calibrate(unprepared(setting, shared[setting.model]))
                    trial = step.experiment.trial
                    mine = unprepared(setting, trial.requests(setting))
                    calibrate(setting, {**mine, **trial.profiled(setting)})

    @cached_property
    def _requests(self) -> dict[str, Requests]:
        """Requests of each experiment, by its id."""
        return {step.experiment.id: self.lab.requests([step]) for step in self.steps}

    def _all_requests(self) -> dict[TaskRequest, dict[str, str]]:
        """Return the requests of the experiments that are left."""
        return merged(self._requests[step.experiment.id] for step in self._left())

    def _share_out(self) -> None:
        """Run the answers that are not timed, one evaluation after the other."""
        lab = self.lab
        with ExitStack() as stack:
            execute: Execute | None = None
            for request, specs in self._all_requests().items():
                asking = [
                    step for step in self._left() if request in self._requests[step.experiment.id]
                ]
                if request.timed or not asking:
                    continue
                with _noting(lab, [step.experiment for step in asking], self.done):
                    shares = jobs(lab.each(asking[0])[0], request, specs)
                    for job in shares:  # empty if nothing is missing, so that no model is loaded
                        execute = execute or stack.enter_context(lab.executed(self.location))
                        for _, rows in execute(chain([job], shares)):
                            for row in rows:
                                self._add(row)

    def _do_alone(self, step: Step) -> None:
        """Run what is timed and what is read off prompts."""
        along = self._all_requests()
        with _noting(self.lab, [step.experiment], self.done):
            for setting in self.lab.each(step, along, self.meter.report):
                began = monotonic()
                for row in step.experiment.trial.run(setting):
                    self._add({"spent_s": round(monotonic() - began, 4), **row})
                    began = monotonic()

    def _add(self, row: Mapping[str, Any]) -> None:
        """Add a row unless it exists: a sample that lacks one row is answered anew under the full
        cache, and with the samples of its batch.
        """
        if key_of(row) in self.lab.rows.of(self.location):
            return
        self.lab.rows.add(self.location, row)
        self.done.note(row)
        self.meter.row(row)


@contextmanager
def _noting(lab: Lab, experiments: Sequence[Experiment], done: Done) -> Iterator[None]:
    """Note what experiments lack; for the only one it is an error."""
    try:
        yield
    except FoveateError as error:
        if len(lab.experiments) == 1 or isinstance(error, CannotWrite | ClusterFailed):
            raise
        done.missing.update({experiment.id: str(error) for experiment in experiments})


def _sum_up(lab: Lab, done: Done) -> None:
    """Note missing data: some leave cells empty, all leave nothing to show."""
    for experiment in lab.experiments:
        read = lab.read_by.get(experiment.id, {})
        lacking = {request.task: why for request, why in read.items() if why}
        if lacking and all(read.values()) and experiment.id not in done.missing:
            with _noting(lab, [experiment], done):
                raise InvalidInput(next(iter(lacking.values())))
        else:
            done.left_out.update(lacking)
    for specs in lab.unmeasured.values():
        done.left_out.update(specs)
