"""Executors of jobs, one module each: this process, or a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from foveate.defaults import DeviceMap
from foveate.errors import InvalidParameter
from foveate.loading.model import Loaded
from foveate_lab.defaults import ExecutorName, Protocol
from foveate_lab.eval.executors.job import Execute, Executor, Job, lacking
from foveate_lab.eval.padding import load

__all__ = ["Execute", "Executor", "Job", "find_executor", "lacking"]


def find_executor(
    name: ExecutorName,
    model: str,
    protocol: Protocol,
    workers: int | None,
    trust_remote_code: bool = False,
    device_map: DeviceMap | None = None,
    *,
    pad_images: bool = False,
    loading: Callable[[], Loaded] | None = None,
) -> Executor:
    """Return the executor of a name; it starts when its context is entered. Jobs can be executed
    several times before it ends. ``loading`` returns the model of the local executor, for example
    one that is loaded already.

    Raises:
        InvalidParameter: ``workers`` for the local executor, or ``device_map`` for Ray, whose
            workers have one device each.
        MissingPackage: Ray is not installed.
    """
    if name == "ray":
        if device_map is not None:
            raise InvalidParameter(
                f"device_map={device_map!r}: a worker of Ray has one device. Use --executor local."
            )
        from foveate_lab.eval.executors.ray import RayCluster

        return RayCluster(model, protocol, workers, trust_remote_code, pad_images)
    from foveate_lab.eval.executors.job import Local

    if workers not in (None, 1):
        raise InvalidParameter(
            f"workers={workers}: the local executor is this process alone. For more, add "
            "--executor ray."
        )
    first = partial(load, model, trust_remote_code, device_map, pad_images=pad_images)
    return Local(loading or first, protocol)
