"""Things that register themselves by name when their module is imported: methods, stages, and what
methods measure.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

V = TypeVar("V")

OWN = "foveate.methods"  # a name, as entry points have one: what is registered here is known above
ENTRY_POINTS = "foveate.methods"


def load_own() -> None:
    """Imports all of Foveate's methods, and with them the stages that they are made of. Whatever
    looks something up calls it first, as ``import foveate`` by itself imports none of them.
    """
    import_module(OWN)


@cache  # once: what a module registers as it is loaded may be looked up meanwhile
def _points() -> Iterator[EntryPoint]:
    return iter(entry_points(group=ENTRY_POINTS))


def load_all() -> None:
    """Imports Foveate's own, then what other packages have registered as entry points: loading a
    module registers its methods and its stages.
    """
    load_own()
    for point in _points():
        point.load()


def load_own_before(module: str) -> None:
    """Of what another package's module registers Foveate's comes first, in listings as in rank."""
    if module.partition(".")[0] != OWN.partition(".")[0]:
        load_own()


class Registry(MutableMapping[str, V]):
    """A dict that holds all of Foveate's own by the time anything looks into it, and what other
    packages registered, where it is none of these.
    """

    def __init__(self) -> None:
        self._held: dict[str, V] = {}

    def __setitem__(self, name: str, value: V) -> None:
        self._held[name] = value

    def __delitem__(self, name: str) -> None:
        del self._held[name]

    def __contains__(self, name: object) -> bool:
        for load in (load_own, load_all):
            if name not in self._held:
                load()
        return name in self._held

    def __getitem__(self, name: str) -> V:
        if name not in self:
            raise self.unknown(name)
        return self._held[name]

    def unknown(self, name: str) -> Exception:
        """The error of a name that nothing registered."""
        return KeyError(name)

    def __iter__(self) -> Iterator[str]:
        load_all()
        return iter(list(self._held))

    def __len__(self) -> int:
        load_all()
        return len(self._held)
