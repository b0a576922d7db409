"""What an evaluation's report draws of its prompts, of the benchmarks that a paper draws it of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from foveate.cli.findings import counted
from foveate_lab.eval.answering.reading import FULL
from foveate_lab.report.analyses import Figure, figures
from foveate_lab.reproduce.ask import Ask, Asked
from foveate_lab.reproduce.experiment import Trial
from foveate_lab.reproduce.setting import Setting
from foveate_lab.reproduce.small import PROMPT
from foveate_lab.reproduce.trials.answers import answers

SEEN = ("seen",)


@dataclass(frozen=True, kw_only=True)
class ViewTrial(Trial):
    """``charts`` are the titles of what is drawn; ``specs`` what is compared in them, if anything
    is. ``each`` of the benchmarks is drawn on its own.
    """

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

    def asks(self, setting: Setting) -> Asked:
        """The policies, of each benchmark: timed, since rows of those have what is drawn."""
        longest = PROMPT if setting.small else None
        count = setting.count(self.samples)
        specs = {setting.spec(one, ""): "" for one in self.policies}
        return {Ask(task, count, longest, True, SEEN): specs for task in self.each}

    def run(self, setting: Setting) -> Iterator[dict[str, Any]]:
        """The rows that are missing."""
        for ask, specs in self.asks(setting).items():
            yield from answers(setting, ask, specs)

    def shown(self, settings: Sequence[Setting]) -> Iterator[Figure]:
        """The charts that there are numbers for."""
        for setting in settings:
            asks = self.asks(setting)
            there = setting.rows(asks)
            for ask, specs in asks.items():
                rows = [
                    row
                    for row in there[ask.name]
                    if row["spec"] in (FULL, *specs) and "error" not in row
                ]
                for figure in figures(rows, self.charts):
                    title = f"{figure.title}: {setting.model}, {ask.task}, {_samples(rows)}"
                    yield figure._replace(title=title)


def _samples(rows: Sequence[Any]) -> str:
    return counted(len({row["sample"] for row in rows}), "sample")
