"""What is written down of a sample that a policy, or the model, refuses."""

from __future__ import annotations

from foveate.errors import (
    CannotWrite,
    ClusterFailed,
    FoveateError,
    MissingPackage,
    ModelNotFound,
)
from foveate.eval.row import Row
from foveate.eval.sample import Sample, Task

OF_THE_RUN = (CannotWrite, ClusterFailed, MissingPackage, ModelNotFound)
"""Errors that the next sample would meet as well, whatever it is: they end the run."""


def failed(task: Task, sample: Sample, spec: str, error: FoveateError) -> Row:
    """A row that holds the error instead of an answer. Raises an error that is of the run."""
    if isinstance(error, OF_THE_RUN):
        raise error
    said = {"type": type(error).__name__, "message": str(error)}
    return {"task": task.name, "sample": sample.name, "spec": spec, "error": said}
