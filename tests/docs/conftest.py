"""Registries of methods, stages and tasks, as they were before a page or notebook."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from foveate.policies.method import METHODS
from foveate.policies.prunes import PRUNES
from foveate.policies.spec import STAGES
from foveate_lab.eval.task_registry import TASKS


@pytest.fixture
def registries() -> Iterator[None]:
    """Forget what a page defines."""
    kept = [(one, set(one)) for one in (METHODS, STAGES, PRUNES, TASKS)]
    yield
    for registry, names in kept:
        for name in set(registry) - names:
            registry.pop(name)
