"""This process, one sample after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from foveate.eval.executors.job import Execute, Job, answered
from foveate.eval.model import load
from foveate.eval.reading import Protocol
from foveate.eval.row import Row


class Local(AbstractContextManager[Execute]):
    """Loads the model when it is entered."""

    def __init__(self, model: str, protocol: Protocol, trust_remote_code: bool = False):
        self.model, self.protocol, self.trusted = model, protocol, trust_remote_code

    def __enter__(self) -> Execute:
        self._loaded = load(self.model, self.trusted)
        return self._execute

    def __exit__(self, *error: Any) -> None:
        del self._loaded

    def _execute(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Iterator[Row]]]:
        for job in jobs:
            yield job, answered(self._loaded, job, self.protocol)
