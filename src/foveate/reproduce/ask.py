"""What an experiment asks of a model: samples of a benchmark, under specs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Ask(NamedTuple):
    """``samples`` of a benchmark, with prompts of at most ``longest_prompt`` tokens.
    ``marks`` tell the rows of one way to ask from those of another.
    """

    task: str
    samples: int
    longest_prompt: int | None = None
    timed: bool = False
    marks: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What its rows call the task."""
        return ", ".join((self.task, *self.marks))


Asked = Mapping[Ask, Mapping[str, str]]
"""The specs of each, with their budgets."""
