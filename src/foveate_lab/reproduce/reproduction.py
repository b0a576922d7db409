"""Python interface of ``foveate reproduce``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypedDict, Unpack

from foveate.defaults import DeviceMap
from foveate_lab.defaults import ExecutorName
from foveate_lab.eval.executors import find_executor
from foveate_lab.eval.judge import Judge
from foveate_lab.reproduce.experiment import Outcome
from foveate_lab.reproduce.outcome import outcome, write
from foveate_lab.reproduce.published_runs import check_published
from foveate_lab.reproduce.registry import find_experiments, folders
from foveate_lab.reproduce.running.costs import Costs, costs
from foveate_lab.reproduce.running.estimate import hardware_of
from foveate_lab.reproduce.running.lab import Lab
from foveate_lab.reproduce.running.merge import merge as merge_rows
from foveate_lab.reproduce.running.perform import perform
from foveate_lab.reproduce.running.progress import Done, Progress
from foveate_lab.reproduce.task_request import Part

ALL = 10_000_000  # samples of a benchmark: more than any has
STAND_IN_SAMPLES = 2


class Options(TypedDict, total=False):
    """Options of a run, by the names that ``foveate reproduce`` gives them.

    ``out`` is where rows, profiles and the page go, ``data`` the folder with the benchmarks'
    folders; ``models`` are places, as ``NAME=PLACE``, all of the papers' if none is named.
    ``limit`` bounds the samples of each benchmark, ``part`` says which of them are asked here.
    ``published`` is a copy of a paper's repository, whose runs are compared with ours.
    """

    out: Path
    data: Path
    models: Sequence[str]
    limit: int | None
    seed: int
    judge: Judge | None
    stand_in: bool
    allow_outside: bool
    trust_remote_code: bool
    device_map: DeviceMap | None
    executor: ExecutorName
    workers: int | None
    part: Part
    published: Path | None


class Reproduction(NamedTuple):
    """Results of a run: its page, tables and figures, and what was refused or missing."""

    page: Path
    outcomes: tuple[Outcome, ...]
    done: Done


def run(
    ids: Sequence[str],
    *,
    on_progress: Callable[[Progress], object] = lambda progress: None,
    begin: Callable[[Costs], object] | None = None,
    **options: Unpack[Options],
) -> Reproduction:
    """Run what is missing of these experiments ("csp:table2", "csp", "all"), and write the page.

    Args:
        ids: experiments, papers, or "all".
        on_progress: called with the progress after every row and profile.
        begin: called with what is left, before the first row.
        options: see :class:`Options`.

    Raises:
        FoveateError: an unknown id, or missing data, model or profile of the only experiment.
    """
    with _lab(ids, options) as lab:
        if begin:
            begin(costs(lab))
        return _write_results(lab, perform(lab, on_progress))


def plan(
    ids: Sequence[str], *, gpu: str | None = None, gpus: int = 1, **options: Unpack[Options]
) -> Costs:
    """Return what is left of these experiments, and what it costs. Nothing is run.

    Args:
        ids: of experiments, of papers, or "all".
        gpu: the GPU that time and memory are predicted for, such as "a100-80gb"; None: no
            prediction.
        gpus: how many of them work side by side.
        options: see :class:`Options`.

    Raises:
        InvalidInput: an unknown id or GPU.
    """
    hardware = hardware_of(gpu) if gpu else None
    return costs(_lab(ids, options, read_only=True), hardware, gpus)


def merge(
    ids: Sequence[str], others: Sequence[Path], **options: Unpack[Options]
) -> tuple[Reproduction, Costs]:
    """Merge the rows of other folders into ``out``, and write the page; return what is left, too.

    Raises:
        InvalidInput: a folder does not fit, or holds no rows of these experiments.
    """
    with _lab(ids, options) as lab:
        merge_rows(lab, others)
        lab.rows.sort()
        return _write_results(lab, Done()), costs(lab)


def _lab(ids: Sequence[str], options: Options, *, read_only: bool = False) -> Lab:
    """Open the folder; for a stand-in, write its data first."""
    executor, workers = options.get("executor", "local"), options.get("workers")
    device_map, small = options.get("device_map"), options.get("stand_in", False)
    find_executor(executor, "", "query-aware", workers, device_map=device_map)  # fail early
    experiments, out = find_experiments(ids), options.get("out", Path("reproduced"))
    published = options.get("published")
    if published is not None:
        check_published(experiments, published)
    lab = Lab(
        experiments,
        out=out,
        data=out / "data" if small else options.get("data", Path("data")),
        models=options.get("models", ()),
        limit=options.get("limit") or (STAND_IN_SAMPLES if small else ALL),
        seed=options.get("seed", 0),
        small=small,
        judge=options.get("judge"),
        outside=options.get("allow_outside", False),
        trust_remote_code=options.get("trust_remote_code", False),
        device_map=device_map,
        executor=executor,
        workers=workers,
        part=options.get("part", Part()),
        read_only=read_only,
        published=published,
    )
    if small:
        _stand_in(lab)
    return lab


def _stand_in(lab: Lab) -> None:
    """Write generated data, and set a rule as the judge."""
    from foveate_lab.reproduce import stand_in  # needs foveate-demo, an optional package

    lab.judge = stand_in.judge
    needed = dict.fromkeys(name for experiment in lab.experiments for name in folders(experiment))
    stand_in.write(lab.data, lab.limit, needed)


def _write_results(lab: Lab, done: Done) -> Reproduction:
    """Write the page of the results so far, and the manifests of the rows."""
    outcomes = tuple(
        outcome(lab, experiment)
        for experiment in lab.experiments
        if experiment.id not in done.missing
    )
    page = write(lab, outcomes)
    lab.seal()
    return Reproduction(page, outcomes, done)
