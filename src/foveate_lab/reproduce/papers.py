"""Experiments of the five papers, read from TOML files beside the figures that they print."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import foveate
from foveate_lab.reproduce.calibrations import CalibrationRun
from foveate_lab.reproduce.experiment import Experiment, FactsTable, Open, Reproduced, Trial
from foveate_lab.reproduce.probes import (
    Coverage,
    KeyMap,
    Searches,
    Similarity,
    Smoothing,
    TokenMap,
)
from foveate_lab.reproduce.published import PublishedProfile, PublishedRun
from foveate_lab.reproduce.resources import Entry, toml
from foveate_lab.reproduce.tables.plots import Plot
from foveate_lab.reproduce.tables.table import LAYOUTS
from foveate_lab.reproduce.trials import (
    Arm,
    Batch,
    Column,
    Gains,
    GridTrial,
    Latency,
    Panels,
    Probe,
    ThroughputTrial,
    ViewTrial,
)

TRIALS = {
    "grid": GridTrial,
    "gains": Gains,
    "latency": Latency,
    "panels": Panels,
    "probe": Probe,
    "throughput": ThroughputTrial,
    "view": ViewTrial,
}
MEASURES = {
    "coverage": Coverage,
    "key map": KeyMap,
    "searches": Searches,
    "similarity": Similarity,
    "smoothing": Smoothing,
    "token map": TokenMap,
}
PROFILES = {"measured": CalibrationRun, "published": PublishedProfile}


class PaperFile:
    """The file of one paper. Its experiments name arms, columns, open points, sentences and
    profiles of the file or of shared.toml, or write them out.
    """

    def __init__(self, name: str):
        self._entry, shared = toml(name), toml("shared")
        named = {
            kind: {**shared.get(kind, {}), **self._entry.get(kind, {})}
            for kind in ("points", "texts", "arms", "columns", "calibrations")
        }
        self._texts: Mapping[str, str] = named["texts"]
        self._points = {key: Open(**entry) for key, entry in named["points"].items()}
        self._arms = {key: Arm(**entry) for key, entry in named["arms"].items()}
        self._columns = {
            key: Column(**{"name": key, **entry}) for key, entry in named["columns"].items()
        }
        self._profiles = {
            key: _of_kind(PROFILES, entry) for key, entry in named["calibrations"].items()
        }
        self.paper = Reproduced(
            method=foveate.METHODS[name],
            name=self._entry["name"],
            open=self._open(self._entry["open"]),
            differences=self._entry["differences"],
            sections=self._entry["sections"],
            runs=tuple(PublishedRun(**run) for run in self._entry.get("runs", ())),
        )

    def experiments(self) -> Iterator[Experiment]:
        """Yield the experiments in the order of the file."""
        readers = {
            "trial": self._trial,
            "open": self._open,
            "departs": self._sentences,
            "bring": self._sentences,
            "calibrations": lambda keys: {key: self._profiles[key] for key in keys},
        }
        for entry in self._entry["experiments"]:
            yield Experiment(of=self.paper, **_read(self._with_id(entry), readers))

    def facts(self) -> Iterator[FactsTable]:
        """Yield the tables without results."""
        for entry in self._entry.get("facts", ()):
            yield FactsTable(of=self.paper, **self._with_id(entry))

    def _with_id(self, entry: Entry) -> Entry:
        return {**entry, "id": f"{self._entry['method']}:{entry['id']}"}

    def _trial(self, entry: Entry) -> Trial:
        readers = {
            "arms": lambda arms: _each(Arm, self._arms, arms),
            "across": lambda columns: _each(Column, self._columns, columns),
            "batches": lambda batches: _each(Batch, {}, batches),
            "panels": lambda panels: tuple(map(self._trial, panels)),
            "measure": lambda measure: _of_kind(MEASURES, measure),
            "plot": lambda plot: Plot(**plot),
            "layout": LAYOUTS.__getitem__,
            "samples": lambda samples: None if samples == "all" else samples,
        }
        trial: Trial = _of_kind(TRIALS, _read(entry, readers))
        return trial

    def _open(self, points: Iterable[str | Entry]) -> tuple[Open, ...]:
        return _each(Open, self._points, points)

    def _sentences(self, texts: Iterable[str]) -> tuple[str, ...]:
        return tuple(self._texts.get(text, text) for text in texts)


def _read(entry: Entry, readers: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the values of fields that have a reader; keep the others."""
    return {
        name: readers[name](value) if name in readers else value for name, value in entry.items()
    }


def _each(kind: Any, named: Mapping[str, Any], entries: Iterable[str | Entry]) -> tuple[Any, ...]:
    """Return the object that each entry names or writes out."""
    return tuple(named[entry] if isinstance(entry, str) else kind(**entry) for entry in entries)


def _of_kind(kinds: Mapping[str, Any], entry: Entry) -> Any:
    """Build an object of an entry's ``kind`` from its other fields."""
    return kinds[entry["kind"]](**{name: value for name, value in entry.items() if name != "kind"})
