"""Division of a cluster into workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from foveate.errors import ClusterFailed


class WorkerShare(NamedTuple):
    """Number of workers, with the CPUs and GPUs of each."""

    workers: int
    cpus: int
    gpus: int


def share(machines: Sequence[Mapping[str, int | float]], workers: int | None) -> WorkerShare:
    """Divide a cluster into workers with one GPU each, or else with as many CPUs as fit.

    By default one worker per GPU, or per machine. ``machines`` have Ray's resources, "CPU" and
    "GPU".

    Raises:
        ClusterFailed: the cluster is too small for ``workers``.
    """
    gpus, cpus = ([int(machine.get(kind, 0)) for machine in machines] for kind in ("GPU", "CPU"))
    if sum(gpus):
        total, room = workers or sum(gpus), sum(gpus)
        shares = WorkerShare(total, 1, 1)
    else:
        total, room = workers or sum(count > 0 for count in cpus), sum(cpus)
        sizes = range(max(cpus, default=0), 0, -1)
        cpus_each = next((n for n in sizes if sum(count // n for count in cpus) >= total), 0)
        shares = WorkerShare(total, cpus_each, 0)
    if not 0 < total <= room:
        kind = "GPU" if sum(gpus) else "CPU"
        raise ClusterFailed(
            f"the cluster has {room} {kind}(s), not room for {max(1, total)} workers. Give fewer "
            "--workers, or add machines to it."
        )
    return shares
