"""Capabilities: public names, commands with defaults, methods, stages, tasks and experiments."""

from __future__ import annotations

import importlib

import foveate
from foveate_lab.eval import metrics
from foveate_lab.eval.benchmarks import BENCHMARKS
from foveate_lab.eval.task_registry import TASKS
from foveate_lab.reproduce import registry
from tests.surface import listing


def capabilities() -> dict[str, list[str]]:
    """Return the lists of names, each line with what it takes."""
    return {
        "public names, stages, options": listing.listing(),
        "defaults of options": [
            line for name in sorted(listing.commands()) for line in _options(name)
        ],
        "methods": [f"{name}{method.signature}" for name, method in foveate.METHODS.items()],
        "tasks": sorted(TASKS),
        "benchmarks": sorted(BENCHMARKS),
        "metrics": sorted(metrics.__all__),
        "experiments": [*registry.EXPERIMENTS, *registry.FACTS],
        "families": list(importlib.import_module("tests.zoo").FAMILIES),
    }


def _options(name: str) -> list[str]:
    command = listing.Deferred()[name]
    return [
        f"{name} {'/'.join(p.opts)} default={p.default!r}"
        f"{' required' if p.required else ''}{' multiple' if getattr(p, 'multiple', False) else ''}"
        for p in command.params
    ]
