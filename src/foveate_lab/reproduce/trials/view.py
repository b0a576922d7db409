"""Charts of an evaluation's report, of the benchmarks that a paper draws them of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from foveate.cli.findings import counted
from foveate_lab.eval.answering.reading import FULL
from foveate_lab.report.analyses import Figure, figures
from foveate_lab.reproduce.experiment import Trial
from foveate_lab.reproduce.setting import Setting
from foveate_lab.reproduce.stand_in_sizes import PROMPT
from foveate_lab.reproduce.task_request import Requests, TaskRequest
from foveate_lab.reproduce.trials.answers import answers

SEEN = ("seen",)


@dataclass(frozen=True, kw_only=True)
class ViewTrial(Trial):
    """Charts of the prompts of some benchmarks. ``charts`` are their titles; ``policies`` are
    compared in them, if any are. ``each`` benchmark is drawn on its own.
    """

    each: tuple[str, ...]
    charts: tuple[str, ...]
    policies: tuple[str, ...] = ()
    samples: int = 100

    def tasks(self) -> Sequence[str]:
        """Return the benchmarks that it reads."""
        return self.each

    def specs(self) -> Sequence[str]:
        """Return the compared policies."""
        return self.policies

    def requests(self, setting: Setting) -> Requests:
        """Return the policies of each benchmark; timed, because only timed rows hold what is
        drawn.
        """
        longest = PROMPT if setting.small else None
        count = setting.count(self.samples)
        specs = {setting.spec(policy, ""): "" for policy in self.policies}
        return {TaskRequest(task, count, longest, True, SEEN): specs for task in self.each}

    def run(self, setting: Setting) -> Iterator[dict[str, Any]]:
        """Yield the missing rows."""
        for request, specs in self.requests(setting).items():
            yield from answers(setting, request, specs)

    def summarise(self, settings: Sequence[Setting]) -> Iterator[Figure]:
        """Yield the charts for which there are numbers."""
        for setting in settings:
            requests = self.requests(setting)
            there = setting.rows(requests)
            for request, specs in requests.items():
                rows = [
                    row
                    for row in there[request.name]
                    if row["spec"] in (FULL, *specs) and "error" not in row
                ]
                for figure in figures(rows, self.charts):
                    title = f"{figure.title}: {setting.model}, {request.task}, {_samples(rows)}"
                    yield figure._replace(title=title)


def _samples(rows: Sequence[Any]) -> str:
    return counted(len({row["sample"] for row in rows}), "sample")
