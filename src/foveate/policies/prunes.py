"""Prune stages by name: ``@prunes("fastv")`` on a stage makes ``fastv.prune(...)`` valid in specs.

There it is first in a sum of methods. Elsewhere the stage is called ``fastv_prune``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

from foveate.policies.docstring import read
from foveate.policies.method import METHODS, Paper, find_paper
from foveate.policies.registry import Registry
from foveate.policies.spec import stage

T = TypeVar("T", bound=type)


@dataclass(frozen=True)
class PruneMethod:
    """A named, cited way to choose the visual tokens that are computed."""

    name: str
    cls: type
    cited: Paper | str | None

    @property
    def stage_name(self) -> str:
        """Name of the stage in specs, if it is not first in a sum."""
        return f"{self.name}_prune"

    @property
    def paper(self) -> Paper | None:
        """Its own paper, or that of the method of the same name."""
        if self.cited is not None or self.name not in METHODS:
            return find_paper(self.cited)
        return METHODS[self.name].paper

    @property
    def summary(self) -> str:
        """The first line of the stage's docstring."""
        return read(self.cls.__doc__).summary


PRUNES: Registry[PruneMethod] = Registry()


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def prunes(name: str, paper: Paper | str | None = None) -> Callable[[T], T]:
    """Turn a class, a :class:`foveate.policies.pruning.Prune`, into a named stage.

    Without ``paper`` it has that of the method of its name, if there is one.
    """

    def register(cls: T) -> T:
        method = PruneMethod(name, cls, paper)
        PRUNES[name] = method
        return stage(method.stage_name)(cls)

    return register
