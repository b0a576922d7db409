"""Answers that are missing: each prompt is read once, for all that is asked of it.

What other experiments ask of the same samples is answered along. Rows of a sample do not depend on
each other, so each is what it would be without the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count, islice
from typing import Any

from foveate.errors import InvalidInput
from foveate_lab.eval.executors.job import Job, answered, lacking
from foveate_lab.eval.held import Key
from foveate_lab.reproduce.ask import Ask, Asked, keys
from foveate_lab.reproduce.setting import Setting


def jobs(setting: Setting, ask: Ask, specs: Mapping[str, str]) -> Iterator[Job]:
    """What lacks an answer, batch by batch; no sample is drawn where nothing does. Specs whose
    profiles cannot be measured are left out, and all of it where no other is asked.
    """
    mine = tuple(spec for spec in specs if spec not in setting.unmeasured)
    if specs and not mine:
        return
    wanted = {name for _, name, _ in missing(setting, ask, {spec: specs[spec] for spec in mine})}
    if not wanted:
        return
    samples, batch = setting.samples(ask), 1 if ask.timed else setting.part.batch
    for place in count(0, batch):
        if not (batch_samples := list(islice(samples, batch))):
            return
        if wanted.isdisjoint(sample.name for _, sample in batch_samples):
            continue
        (task, first), *others = batch_samples
        job = Job(
            task,
            first,
            mine,
            ask.timed,
            ask.longest_prompt,
            strict=True,
            raised=setting.raised,
            number=place,
            beside=tuple(sample for _, sample in others),
        )
        if left := lacking(job, setting.results):
            yield left


def missing(setting: Setting, ask: Ask, specs: Mapping[str, str]) -> list[Key]:
    """The rows that are to be asked here and are not there."""
    wanted = keys(ask, specs, setting.names(ask), setting.part)
    return [key for key in wanted if key not in setting.results]


def answers(setting: Setting, ask: Ask, specs: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """The missing rows of these specs, one after the other, in this process and alone; and, of
    samples that have some, those of what is asked along. Profiles are there already.
    """
    if missing(setting, ask, specs):
        for job in jobs(setting, ask, {**specs, **setting.along.get(ask, {})}):
            yield from answered(setting.load(), job, "query-aware")


def unprepared(setting: Setting, asks: Asked) -> dict[str, str]:
    """The specs, with their budgets, that some missing row is of."""
    unmeasured: dict[str, str] = {}
    for ask, specs in asks.items():
        lacking_one = {spec for _, _, spec in missing(setting, ask, specs)}
        unmeasured |= {spec: specs[spec] for spec in specs if spec in lacking_one}
    return unmeasured


def calibrate(setting: Setting, specs: Mapping[str, str]) -> None:
    """Measures the profiles of these specs, in one go where all can be, and notes of others why
    they cannot.
    """
    left = {spec: budget for spec, budget in specs.items() if spec not in setting.unmeasured}
    try:
        setting.calibrate(left)
    except InvalidInput:
        for spec, budget in left.items():
            try:
                setting.calibrate({spec: budget})
            except InvalidInput as error:
                setting.unmeasured[spec] = str(error)
