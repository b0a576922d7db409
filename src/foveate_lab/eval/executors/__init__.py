"""Executors of jobs, one module each: this process, a Ray cluster, or a server."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from foveate.defaults import DeviceMap
from foveate.errors import InvalidParameter
from foveate.loading.model import Loaded
from foveate_lab.defaults import AnyExecutorName, Protocol
from foveate_lab.eval.executors.job import Execute, Executor, Job, lacking
from foveate_lab.eval.padding import load

__all__ = ["Execute", "Executor", "Job", "find_executor", "lacking"]


def find_executor(
    name: AnyExecutorName,
    model: str,
    protocol: Protocol,
    workers: int | None,
    trust_remote_code: bool = False,
    device_map: DeviceMap | None = None,
    *,
    pad_images: bool = False,
    loading: Callable[[], Loaded] | None = None,
    url: str | None = None,
) -> Executor:
    """Return the executor of a name; it starts when its context is entered. Jobs can be executed
    several times before it ends. ``loading`` returns the model of the local executor, for example
    one that is loaded already. ``url`` is the server of "http".

    Raises:
        InvalidParameter: ``workers`` for the local executor, ``device_map`` for Ray, whose
            workers have one device each, or an option that a server does not take.
        MissingPackage: Ray is not installed.
    """
    if url is not None and name != "http":
        raise InvalidParameter(f"--url {url!r} is for --executor http: add that, or leave it out.")
    if name == "http":
        return _http(model, protocol, workers, url, device_map is not None or trust_remote_code)
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


def _http(
    model: str, protocol: Protocol, workers: int | None, url: str | None, loads: bool
) -> Executor:
    from foveate_lab.eval.executors.client import Client
    from foveate_lab.eval.executors.http import Http

    if protocol != "query-aware":
        raise InvalidParameter(
            f"--protocol {protocol} needs the tokens of a context, which a server does not report. "
            "Leave it out, or use --executor local."
        )
    if loads:
        raise InvalidParameter(
            "--device-map and --trust-remote-code are the server's: with --executor http leave "
            "them out."
        )
    return Http(Client(url), model, workers)
