"""Capabilities: public names, commands with defaults, methods, stages, tasks and experiments."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import foveate
from tests.surface import listing


def laboratory(module: str) -> Any:
    """Import a module of the laboratory, from the package that has it."""
    packages = ("foveate_lab", "foveate")
    home = next(name for name in packages if importlib.util.find_spec(name) and _has(name, module))
    return importlib.import_module(f"{home}.{module}")


def _has(package: str, module: str) -> bool:
    return importlib.util.find_spec(f"{package}.{module.partition('.')[0]}") is not None


def capabilities() -> dict[str, list[str]]:
    """Return the lists of names, each line with what it takes."""
    sample, metrics = laboratory("eval"), laboratory("eval.metrics")
    laboratory("eval.tasks")
    registry = laboratory("reproduce.registry")
    return {
        "public names, stages, options": listing.listing(),
        "defaults of options": [
            line for name in sorted(listing.COMMANDS) for line in _options(name)
        ],
        "methods": [f"{name}{method.signature}" for name, method in foveate.METHODS.items()],
        "tasks": sorted(sample.TASKS),
        "benchmarks": sorted(laboratory("eval.benchmarks").BENCHMARKS),
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
