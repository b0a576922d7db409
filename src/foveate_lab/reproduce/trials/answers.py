"""Missing answers: each prompt is read once for all requests.

Requests of other experiments for the same samples are answered along. Rows of a sample do not
depend on each other, so each is the same as without the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count, islice
from typing import Any

from foveate.errors import InvalidInput
from foveate_lab.eval.executors.job import Job, answered, lacking
from foveate_lab.eval.keyed_rows import Key
from foveate_lab.reproduce.setting import Setting
from foveate_lab.reproduce.task_request import Requests, TaskRequest, keys


def jobs(setting: Setting, request: TaskRequest, specs: Mapping[str, str]) -> Iterator[Job]:
    """Yield the missing answers batch by batch; draws no sample if none is missing.

    Specs whose profiles cannot be measured are left out; without any other spec so is the request.
    """
    mine = tuple(spec for spec in specs if spec not in setting.unmeasured)
    if specs and not mine:
        return
    names = {name for _, name, _ in missing(setting, request, {spec: specs[spec] for spec in mine})}
    if not names:
        return
    samples, batch = setting.samples(request), 1 if request.timed else setting.part.batch
    for index in count(0, batch):
        if not (batch_samples := list(islice(samples, batch))):
            return
        if names.isdisjoint(sample.name for _, sample in batch_samples):
            continue
        (task, first), *others = batch_samples
        job = Job(
            task,
            first,
            mine,
            request.timed,
            request.longest_prompt,
            strict=True,
            raised=setting.raised,
            number=index,
            beside=tuple(sample for _, sample in others),
        )
        if left := lacking(job, setting.results):
            yield left


def missing(setting: Setting, request: TaskRequest, specs: Mapping[str, str]) -> list[Key]:
    """Return the keys of missing rows that this part has to run."""
    all_keys = keys(request, specs, setting.names(request), setting.part)
    return [key for key in all_keys if key not in setting.results]


def answers(
    setting: Setting, request: TaskRequest, specs: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Yield the missing rows of these specs one by one, in this process; of the same samples also
    the missing rows of other experiments. Profiles have to exist.
    """
    if missing(setting, request, specs):
        for job in jobs(setting, request, {**specs, **setting.along.get(request, {})}):
            yield from answered(setting.load(), job, "query-aware")


def unprepared(setting: Setting, requests: Requests) -> dict[str, str]:
    """Return the specs of missing rows, with their budgets."""
    unmeasured: dict[str, str] = {}
    for request, specs in requests.items():
        lacking_one = {spec for _, _, spec in missing(setting, request, specs)}
        unmeasured |= {spec: specs[spec] for spec in specs if spec in lacking_one}
    return unmeasured


def calibrate(setting: Setting, specs: Mapping[str, str]) -> None:
    """Measure the profiles of these specs, in one pass if all can be measured, and note why others
    cannot.
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
