"""Where samples are worked on: one file for each place."""

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
    """The executor of that name; what it needs is imported here, and started when it is entered.
    It can be given jobs more than once before it is left. ``loading`` is for the local one: gives
    the model, where that may be held already.

    Raises:
        InvalidParameter: a number of workers for the local one, which is one process, or a device
            map for Ray's, which have one device each.
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
