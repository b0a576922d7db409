"""Summary of a leaderboard's answers: a row per method, over questions that all answered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.quality.same_questions import BUDGETS, METHODS, TASKS_ASKED, specs_of
from foveate.compression.labels import named
from foveate_lab.bench import processor
from foveate_lab.eval.answering.reading import FULL
from foveate_lab.eval.results import read
from foveate_lab.eval.summary import Estimate, estimate, mean_difference

Row = Mapping[str, Any]
Key = tuple[str, str]  # task and sample
REFERENCES = ("oracle", "random")  # not methods


def standings(folder: Path) -> dict[str, Any]:
    """Summarize one protocol, every cell over the same questions, equally many of each task.

    A budget that is missing in one task is summarized over the other.
    """
    rows = {task: _complete_rows(read(folder / task).rows, task) for task in TASKS_ASKED}
    count = min(len(samples) for samples in rows.values())
    if not count:
        raise SystemExit(f"{folder}: no question of each task has been asked under every method.")
    by_spec: dict[str, dict[Key, Row]] = {}
    for task, samples in rows.items():
        for sample in sorted(samples, key=int)[:count]:
            for row in samples[sample]:
                by_spec.setdefault(row["spec"], {})[task, sample] = row
    full = by_spec.pop(FULL)
    methods = _methods(by_spec)
    return {
        "questions": dict.fromkeys(TASKS_ASKED, count),
        "tasks": {
            b: [t for t in TASKS_ASKED if _is_asked(by_spec.values(), t, b)] for b in BUDGETS
        },
        "tokens": [
            min(r["tokens"] for r in full.values()),
            max(r["tokens"] for r in full.values()),
        ],
        "prefill_s": median(row["prefill_s"] for row in full.values()),
        "machine": processor(torch.device("cpu")),
        "versions": read(folder / TASKS_ASKED[0]).configuration["versions"],
        "full": {
            t: _plain(estimate([row["right"] for (task, _), row in full.items() if task == t]))
            for t in TASKS_ASKED
        },
        "methods": [_method(name, cells, methods) for name, cells in methods.items()],
    }


def _complete_rows(rows: Sequence[Row], task: str) -> dict[str, list[Row]]:
    """Return the rows of samples that were answered under every spec of today."""
    specs = {FULL, *specs_of(task, METHODS, BUDGETS)}
    found: dict[str, dict[str, Row]] = {}
    for row in rows:
        if row["spec"] in specs:
            found.setdefault(row["sample"], {})[row["spec"]] = row
    return {name: list(of.values()) for name, of in found.items() if set(of) == specs}


def _methods(by_spec: Mapping[str, Mapping[Key, Row]]) -> dict[str, dict[str, Mapping[Key, Row]]]:
    found: dict[str, dict[str, Mapping[Key, Row]]] = {}
    for spec, rows in by_spec.items():
        method, budget = named(spec)
        found.setdefault(method, {})[budget] = rows
    return found


def _is_asked(cells: Iterable[Mapping[Key, Row]], task: str, budget: str) -> bool:
    return any(
        key[0] == task and named(row["spec"]).budget == budget
        for rows in cells
        for key, row in rows.items()
    )


def _method(name: str, cells: Mapping[str, Mapping[Key, Row]], others: Any) -> dict[str, Any]:
    """Summarize a method: cells, median cost of compression, and refusals with reasons."""
    answered = [row for rows in cells.values() for row in rows.values() if "error" not in row]
    costs = [(row["compress_s"] + row["sums_s"]) / row["prefill_s"] for row in answered]
    return {
        "method": name,
        "cost": round(median(costs), 4) if costs else None,
        "cells": {b: _cell(rows, _best(others, b)) for b, rows in cells.items() if _right(rows)},
        "refused": {
            b: next(row["error"] for row in rows.values() if "error" in row)
            for b, rows in cells.items()
            if not _right(rows)
        },
    }


def _cell(rows: Mapping[Key, Row], best: Mapping[Key, float]) -> dict[str, Any]:
    right = _right(rows)
    shares = [row["kv_bytes"] / row["kv_bytes_full"] for row in rows.values()]
    behind = mean_difference([right[key] - best[key] for key in right])
    return {
        "right": _plain(estimate(right.values())),
        "count": len(right),
        "bytes": round(sum(shares) / len(shares), 4),
        "behind": _plain(behind),
    }


def _right(rows: Mapping[Key, Row]) -> dict[Key, float]:
    """Return 1 for every right answer; empty if a question was refused, so that sets stay equal."""
    if any("error" in row for row in rows.values()):
        return {}
    return {key: row["right"] for key, row in rows.items()}


def _best(methods: Mapping[str, Mapping[str, Mapping[Key, Row]]], budget: str) -> dict[Key, float]:
    """Return the answers of the method with the most right answers at a budget."""
    found = [
        _right(cells[budget])
        for name, cells in methods.items()
        if budget in cells and name.split(":")[0] not in REFERENCES
    ]
    return max(found, key=lambda right: sum(right.values()))


def _plain(x: Estimate) -> list[float]:
    return [round(number, 4) for number in (x.mean, x.low, x.high)]
