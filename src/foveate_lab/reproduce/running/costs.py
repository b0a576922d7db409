"""Cost of what is left of a plan, before it starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from foveate.errors import FoveateError
from foveate.loading.model import Loaded, outline
from foveate.prompts.prompt import read
from foveate_lab.eval.answering.reading import asked_in
from foveate_lab.eval.keyed_rows import Key
from foveate_lab.eval.pixels import bounded
from foveate_lab.reproduce.models import Place
from foveate_lab.reproduce.running.estimate import Hardware, ModelEstimate, Predicted
from foveate_lab.reproduce.running.lab import Lab
from foveate_lab.reproduce.running.perform import planned
from foveate_lab.reproduce.running.progress import Done, Step
from foveate_lab.reproduce.setting import Setting
from foveate_lab.reproduce.task_request import TaskRequest
from foveate_lab.reproduce.trials.answers import missing, unprepared

FIRST = 2  # samples of a set whose prompts are tokenised to predict its length


class Cost(NamedTuple):
    """Cost of one request to one model: prompts, answers, tokens of all prompts and seconds of one
    process; None where unknown. ``alone``: one process does it, with nothing beside it.
    """

    model: str
    task: str
    alone: bool
    prompts: int
    answers: int
    tokens: int | None
    seconds: float | None


@dataclass(frozen=True)
class Costs:
    """Cost of all that is left. ``there`` of ``rows`` exist; ``profiles`` are files to be measured,
    whose time is in no row. ``missing`` says why experiments do not run, by id. ``estimates`` are
    predictions for GPUs, model by model; none where no GPU was named.
    """

    rows: int
    there: int
    profiles: int
    workers: int
    each: tuple[Cost, ...]
    missing: dict[str, str]
    estimates: tuple[ModelEstimate, ...] = ()

    @property
    def prompts(self) -> int:
        return sum(cost.prompts for cost in self.each)

    @property
    def answers(self) -> int:
        return sum(cost.answers for cost in self.each)

    @property
    def tokens(self) -> int | None:
        """Sum of the known tokens; None if none are known."""
        known = [cost.tokens for cost in self.each if cost.tokens is not None]
        return sum(known) if known else None

    @property
    def seconds(self) -> int | float | None:
        """Seconds of everything, with its workers; None if some are unknown."""
        known = [
            cost.seconds / (1 if cost.alone else self.workers)
            for cost in self.each
            if cost.seconds is not None
        ]
        return sum(known) if len(known) == len(self.each) else None

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON takes them."""
        hours = None if self.seconds is None else round(self.seconds / 3600, 4)
        names = ("rows", "there", "prompts", "tokens", "answers", "profiles", "workers")
        return {
            **{name: getattr(self, name) for name in names},
            "hours": hours,
            "each": [cost._asdict() for cost in self.each],
            "missing": self.missing,
            "estimates": [estimate._asdict() for estimate in self.estimates],
        }


def costs(lab: Lab, hardware: Hardware | None = None, gpus: int = 1) -> Costs:
    """Return what is left of a lab's plan. Data are read; of models no weights.

    The seconds of a row are those of the rows that are there: of its set, or else of its model.
    With ``hardware``, hours and memory are predicted for so many GPUs of that kind.
    """
    done = Done()
    estimates: list[ModelEstimate] = []
    lines: list[Cost] = []
    rows = there = 0
    profiles: set[Path] = set()
    for location, steps in planned(lab, done).items():
        keys = set(lab.keys(steps))
        rows += len(keys)
        there += sum(key in lab.rows.of(location) for key in keys)
        for step in steps:
            for setting in lab.each(step):
                trial = step.experiment.trial
                lacking = {
                    **unprepared(setting, trial.requests(setting)),
                    **trial.profiled(setting),
                }
                profiles |= {path for x in setting.profiles_of(lacking).values() for path in x}
        left = _Left(lab, location, steps)
        lines += left.costs()
        if hardware is not None:
            predicted = Predicted(lab, location, steps, hardware, gpus, left.length).estimate()
            estimates += [predicted] if predicted else []
    workers = lab.workers or 1
    return Costs(rows, there, len(profiles), workers, tuple(lines), done.missing, tuple(estimates))


@dataclass
class _Left:
    """Missing rows of one model."""

    lab: Lab
    location: Place
    steps: Sequence[Step]

    def costs(self) -> Iterator[Cost]:
        seen: set[Key] = set()
        setting = self.lab.each(self.steps[0])[0]
        for request, specs in self.lab.requests(self.steps).items():
            keys = set(missing(setting, request, specs)) - seen
            seen |= keys
            if keys:
                yield self._cost(request.name, request.timed, keys, self.length(setting, request))
        alone: dict[str, set[Key]] = {}
        for step in self.steps:
            for setting in self.lab.each(step):
                for key in step.experiment.trial.measured(setting):
                    if key not in setting.results:
                        alone.setdefault(key[0], set()).add(key)
        for name, keys in alone.items():
            yield self._cost(name, True, keys, self._mean("tokens", name))

    def _cost(self, name: str, alone: bool, keys: set[Key], length: int | float | None) -> Cost:
        prompts = len({sample for _, sample, _ in keys})
        each = self._mean("spent_s", name) or self._mean("spent_s")
        return Cost(
            self.location.at,
            name,
            alone,
            prompts,
            len(keys),
            None if length is None else round(prompts * length),
            None if each is None else len(keys) * each,
        )

    def _mean(self, what: str, task: str = "") -> int | float | None:
        """Average a number over the rows of a task, or over all rows."""
        rows = (row for row in self.lab.rows.of(self.location).rows if task in ("", row["task"]))
        numbers = [row[what] for row in rows if isinstance(row.get(what), int | float)]
        return mean(numbers) if numbers else None

    def length(self, setting: Setting, request: TaskRequest) -> int | float | None:
        """Return the tokens of a prompt, from existing rows or the first samples; None if
        unknown.
        """
        if (there := self._mean("tokens", request.name)) is not None or self._outline is None:
            return there
        try:
            first = list(islice(setting.samples(request), FIRST))
            lengths = [_tokens(self._outline, task, sample) for task, sample in first]
        except FoveateError:
            return None
        return (
            mean(min(tokens, request.longest_prompt or tokens) for tokens in lengths)
            if lengths
            else None
        )

    @cached_property
    def _outline(self) -> Loaded | None:
        """The model without weights, which reads prompts; None if it is not found."""
        try:
            return outline(self.location.at, self.lab.trust_remote_code)
        except FoveateError:
            return None


def _tokens(loaded: Loaded, task: Any, sample: Any) -> int:
    loaded, _ = asked_in(loaded, task, sample)
    if task.fit:
        sample = task.fit(loaded.tokenizer, sample)
    images = list(sample.images)
    if loaded.sees and images:
        loaded = bounded(loaded, task.pixels)
    return read(loaded, sample.text, images, plain=sample.plain).tokens
