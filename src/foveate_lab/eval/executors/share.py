"""How many workers a cluster gets, and what each of them has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from foveate.errors import ClusterFailed


class WorkerShare(NamedTuple):
    """How many workers, and what each of them gets."""

    workers: int
    cpus: int
    gpus: int


def share(machines: Sequence[Mapping[str, int | float]], workers: int | None) -> WorkerShare:
    """A GPU each if there are any, otherwise as many CPUs each as fit; by default one worker for
    each GPU, or for each machine. ``machines`` have Ray's resources, "CPU" and "GPU".

    Raises:
        ClusterFailed: there is not room for so many.
    """
    gpus, cpus = ([int(machine.get(kind, 0)) for machine in machines] for kind in ("GPU", "CPU"))
    if sum(gpus):
        wanted, room = workers or sum(gpus), sum(gpus)
        shares = WorkerShare(wanted, 1, 1)
    else:
        wanted, room = workers or sum(count > 0 for count in cpus), sum(cpus)
        sizes = range(max(cpus, default=0), 0, -1)
        each = next((n for n in sizes if sum(count // n for count in cpus) >= wanted), 0)
        shares = WorkerShare(wanted, each, 0)
    if not 0 < wanted <= room:
        kind = "GPU" if sum(gpus) else "CPU"
        raise ClusterFailed(
            f"the cluster has {room} {kind}(s), not room for {max(1, wanted)} workers. Give fewer "
            "--workers, or add machines to it."
        )
    return shares
