"""What is left of a plan, and what it costs: said before it starts."""

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
from foveate_lab.eval.held import Key
from foveate_lab.eval.pixels import bounded
from foveate_lab.reproduce.ask import Ask
from foveate_lab.reproduce.models import Place
from foveate_lab.reproduce.running.lab import Lab
from foveate_lab.reproduce.running.perform import planned
from foveate_lab.reproduce.running.progress import Done, Step
from foveate_lab.reproduce.setting import Setting
from foveate_lab.reproduce.trials.answers import missing, unprepared

FIRST = 2  # samples of a set whose prompts are read for their length


class Cost(NamedTuple):
    """What is left of one way to ask a model a set: prompts to read, answers to give, tokens of all
    prompts and seconds of one process; None where they are not known. ``alone`` is asked by one
    process, with nothing beside it.
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
    """Of all that is left. ``there`` of ``rows`` are there; ``profiles`` are files to be measured,
    whose time is in no row. ``missing`` says why experiments are not run, by id.
    """

    rows: int
    there: int
    profiles: int
    workers: int
    each: tuple[Cost, ...]
    missing: dict[str, str]

    @property
    def prompts(self) -> int:
        return sum(one.prompts for one in self.each)

    @property
    def answers(self) -> int:
        return sum(one.answers for one in self.each)

    @property
    def tokens(self) -> int | None:
        """Of those that are known; None if none are."""
        known = [one.tokens for one in self.each if one.tokens is not None]
        return sum(known) if known else None

    @property
    def seconds(self) -> int | float | None:
        """Of the whole, with its workers; None if the time of some is not known."""
        known = [
            one.seconds / (1 if one.alone else self.workers)
            for one in self.each
            if one.seconds is not None
        ]
        return sum(known) if len(known) == len(self.each) else None

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        hours = None if self.seconds is None else round(self.seconds / 3600, 4)
        names = ("rows", "there", "prompts", "tokens", "answers", "profiles", "workers")
        return {
            **{name: getattr(self, name) for name in names},
            "hours": hours,
            "each": [one._asdict() for one in self.each],
            "missing": self.missing,
        }


def costs(lab: Lab) -> Costs:
    """What is left of a lab's plan. Data are read; of models no weights.

    The seconds of a row are those of the rows that are there: of its set, or else of its model.
    """
    done = Done()
    lines: list[Cost] = []
    rows = there = 0
    profiles: set[Path] = set()
    for place, steps in planned(lab, done).items():
        keys = set(lab.keys(steps))
        rows += len(keys)
        there += sum(key in lab.rows.of(place) for key in keys)
        for step in steps:
            for setting in lab.each(step):
                trial = step.experiment.trial
                lacking = {**unprepared(setting, trial.asks(setting)), **trial.profiled(setting)}
                profiles |= {one for x in setting.profiles_of(lacking).values() for one in x}
        lines += _Left(lab, place, steps).costs()
    return Costs(rows, there, len(profiles), lab.workers or 1, tuple(lines), done.missing)


@dataclass
class _Left:
    """What is left of one model."""

    lab: Lab
    place: Place
    steps: Sequence[Step]

    def costs(self) -> Iterator[Cost]:
        seen: set[Key] = set()
        setting = self.lab.each(self.steps[0])[0]
        for ask, specs in self.lab.asks(self.steps).items():
            keys = set(missing(setting, ask, specs)) - seen
            seen |= keys
            if keys:
                yield self._cost(ask.name, ask.timed, keys, self._length(setting, ask))
        alone: dict[str, set[Key]] = {}
        for step in self.steps:
            for one in self.lab.each(step):
                for key in step.experiment.trial.measured(one):
                    if key not in one.results:
                        alone.setdefault(key[0], set()).add(key)
        for name, keys in alone.items():
            yield self._cost(name, True, keys, self._mean("tokens", name))

    def _cost(self, name: str, alone: bool, keys: set[Key], length: int | float | None) -> Cost:
        prompts = len({sample for _, sample, _ in keys})
        each = self._mean("spent_s", name) or self._mean("spent_s")
        return Cost(
            self.place.at,
            name,
            alone,
            prompts,
            len(keys),
            None if length is None else round(prompts * length),
            None if each is None else len(keys) * each,
        )

    def _mean(self, what: str, task: str = "") -> int | float | None:
        """Over the rows that are there, of a task or of all."""
        rows = (row for row in self.lab.rows.of(self.place).rows if task in ("", row["task"]))
        numbers = [row[what] for row in rows if isinstance(row.get(what), int | float)]
        return mean(numbers) if numbers else None

    def _length(self, setting: Setting, ask: Ask) -> int | float | None:
        """Tokens of a prompt: of the rows that are there, or of the first samples."""
        if (there := self._mean("tokens", ask.name)) is not None or self._outline is None:
            return there
        try:
            first = list(islice(setting.samples(ask), FIRST))
            lengths = [_tokens(self._outline, task, sample) for task, sample in first]
        except FoveateError:
            return None
        return mean(min(one, ask.longest_prompt or one) for one in lengths) if lengths else None

    @cached_property
    def _outline(self) -> Loaded | None:
        """What reads prompts; None where the model is not there."""
        try:
            return outline(self.place.at, self.lab.trust_remote_code)
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
