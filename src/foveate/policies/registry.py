"""Registries by name, filled by imports: methods, stages, and measurements of methods."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

V = TypeVar("V")

OWN = "foveate.methods"  # a name, because this package must not import packages above it
ENTRY_POINTS = "foveate.methods"


def load_own() -> None:
    """Import all of Foveate's methods, and with them their stages.

    Every look-up calls it first, because ``import foveate`` alone imports none of them.
    """
    import_module(OWN)


@cache  # one iterator: a look-up while a module is loaded must not load it again
def _points() -> Iterator[EntryPoint]:
    return iter(entry_points(group=ENTRY_POINTS))


def load_all() -> None:
    """Import Foveate's methods, then the entry points of other packages, which register theirs."""
    load_own()
    for point in _points():
        point.load()


def load_own_before(module: str) -> None:
    """Import Foveate's methods before another package's module registers one."""
    if module.partition(".")[0] != OWN.partition(".")[0]:
        load_own()


class Registry(MutableMapping[str, V]):
    """A dict that imports Foveate's own entries before any look-up.

    Entries of other packages are imported if a name is not among these.
    """

    def __init__(self) -> None:
        self._entries: dict[str, V] = {}

    def __setitem__(self, name: str, value: V) -> None:
        self._entries[name] = value

    def __delitem__(self, name: str) -> None:
        del self._entries[name]

    def __contains__(self, name: object) -> bool:
        for load in (load_own, load_all):
            if name not in self._entries:
                load()
        return name in self._entries

    def __getitem__(self, name: str) -> V:
        if name not in self:
            raise self.unknown(name)
        return self._entries[name]

    def unknown(self, name: str) -> Exception:
        """Return the error for a name that is not registered."""
        return KeyError(name)

    def __iter__(self) -> Iterator[str]:
        load_all()
        return iter(list(self._entries))

    def __len__(self) -> int:
        load_all()
        return len(self._entries)
