"""A table or figure whose parts run in different ways, one below the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foveate_lab.eval.keyed_rows import Key
from foveate_lab.report.analyses import Figure
from foveate_lab.reproduce.experiment import Trial
from foveate_lab.reproduce.setting import Setting
from foveate_lab.reproduce.tables.table import Table
from foveate_lab.reproduce.task_request import Requests, merged


@dataclass(frozen=True, kw_only=True)
class Panels(Trial):
    """Several trials with the same models."""

    panels: tuple[Trial, ...]

    def tasks(self) -> Sequence[str]:
        return list(dict.fromkeys(task for panel in self.panels for task in panel.tasks()))

    def specs(self) -> Sequence[str]:
        return list(dict.fromkeys(spec for panel in self.panels for spec in panel.specs()))

    def raised(self) -> Iterable[str]:
        return (spec for panel in self.panels for spec in panel.raised())

    def requests(self, setting: Setting) -> Requests:
        return merged(panel.requests(setting) for panel in self.panels)

    def profiled(self, setting: Setting) -> Mapping[str, str]:
        return {k: v for panel in self.panels for k, v in panel.profiled(setting).items()}

    def measured(self, setting: Setting) -> Iterator[Key]:
        for panel in self.panels:
            yield from panel.measured(setting)

    def run(self, setting: Setting) -> Iterator[dict[str, Any]]:
        for panel in self.panels:
            yield from panel.run(setting)

    def summarise(self, settings: Sequence[Setting]) -> Iterator[Table | Figure]:
        for panel in self.panels:
            yield from panel.summarise(settings)
