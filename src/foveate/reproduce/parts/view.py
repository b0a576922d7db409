"""What an evaluation's report draws of its prompts, of the benchmarks that a paper draws it of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from foveate.eval.executors.job import Job, answered
from foveate.eval.reading import FULL
from foveate.report.analyses import Figure, figures
from foveate.reproduce.setting import PROMPT, Setting


@dataclass(frozen=True, kw_only=True)
class View:
    """``charts`` are the titles of what is drawn; ``specs`` what is compared in them, if anything
    is. ``each`` of the benchmarks is drawn on its own.
    """

    models: tuple[str, ...]
    each: tuple[str, ...]
    charts: tuple[str, ...]
    policies: tuple[str, ...] = ()
    samples: int = 100

    def tasks(self) -> Sequence[str]:
        """The benchmarks that it reads."""
        return self.each

    def specs(self) -> Sequence[str]:
        """What is compared."""
        return self.policies

    def run(self, setting: Setting) -> Iterator[dict[str, Any]]:
        """The rows that are missing."""
        for name in self.each:
            task = setting.task(name)
            task = replace(task, name=_seen(task.name))
            for sample in task.samples(setting.count(self.samples), setting.seed):
                specs = [setting.spec(one, "") for one in self.policies]
                missing = [
                    spec
                    for spec in (FULL, *specs)
                    if (task.name, sample.name, spec) not in setting.results
                ]
                if missing:
                    for spec in specs:
                        setting.calibrated(spec, "")
                    others = tuple(spec for spec in missing if spec != FULL)
                    longest = PROMPT if setting.small else None
                    job = Job(task, sample, others, timed=True, longest_prompt=longest)
                    yield from answered(setting.load(), job, "query-aware")

    def shown(self, settings: Sequence[Setting]) -> Iterator[Figure]:
        """The charts that there are numbers for."""
        for setting in settings:
            for name in self.each:
                mine = {*(setting.spec(one, "") for one in self.policies), FULL}
                rows = [
                    row
                    for row in setting.results.rows
                    if row["task"] == _seen(name) and row["spec"] in mine and "error" not in row
                ]
                for figure in figures(rows):
                    if figure.title in self.charts:
                        title = f"{figure.title}: {setting.model}, {name}, {_counted(rows)}"
                        yield figure._replace(title=title)


def _seen(task: str) -> str:
    return f"{task}, seen"


def _counted(rows: Sequence[Any]) -> str:
    count = len({row["sample"] for row in rows})
    return f"{count} sample{'s' if count != 1 else ''}"
