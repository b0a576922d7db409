"""Answers that are missing: each prompt is read once, for all that is asked of it.

What other experiments ask of the same samples is answered along. Rows of a sample do not depend on
each other, so each is what it would be without the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from foveate.errors import FoveateError, InvalidInput
from foveate.eval.executors.job import Job, answered, lacking
from foveate.reproduce.ask import Ask
from foveate.reproduce.setting import Setting


def answers(setting: Setting, ask: Ask, specs: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """The missing rows of these specs, which are given with their budgets; and, of samples that
    have some, those of what is asked along.
    """
    for task, sample in setting.samples(ask):
        job = Job(
            task,
            sample,
            tuple(specs),
            ask.timed,
            ask.longest_prompt,
            strict=True,
            raised=setting.raised,
        )
        if left := lacking(job, setting.results):
            calibrate(setting, {spec: specs[spec] for spec in left.specs})
            mine = tuple(spec for spec in specs if spec not in setting.unmeasured)
            if left.specs and not {*left.specs} & {*mine}:
                continue
            left = left._replace(specs=tuple(one for one in left.specs if one in mine))
            whole = job._replace(specs=(*mine, *_along(setting, ask)))
            left = lacking(whole, setting.results) or left
            yield from answered(setting.load(), left, "query-aware")


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


def _along(setting: Setting, ask: Ask) -> Iterator[str]:
    """The specs that others ask. What lacks a profile that cannot be measured is left to its
    experiment, which says why.
    """
    specs = setting.along.get(ask, {})
    with suppress(FoveateError):
        setting.calibrate(specs)
    return (spec for spec, budget in specs.items() if setting.calibrated(spec, budget))
