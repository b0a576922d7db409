"""Separate processes, so that memory and time are those of one piece of work."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import ParamSpec, TypeVar

Of = ParamSpec("Of")
Result = TypeVar("Result")


def apart(work: Callable[Of, Result], *of: Of.args, **more: Of.kwargs) -> Result:
    """Return the result of a module's function in a new process that has done nothing else."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(work, *of, **more).result()
