"""``--executor ray``: what one process answers, answered by several, none lost with a worker."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import ray
from typer.testing import CliRunner

from foveate.cli.app import app
from foveate.errors import ClusterFailed, InvalidParameter, MissingPackage, ModelNotFound
from foveate.loading.model import load
from foveate.prompts.sample import Sample
from foveate_lab.eval.executors import Job, find_executor
from foveate_lab.eval.executors import ray as cluster
from foveate_lab.eval.executors.job import Local
from foveate_lab.eval.executors.ray import RayCluster
from foveate_lab.eval.executors.share import WorkerShare, share
from foveate_lab.eval.tasks import find_task
from tests.eval.test_eval import TIMES, evaluated, rows_in

TASK = find_task("document")
SPECS = ("snapkv:budget=50%,window=4", "random:budget=30%")


@pytest.fixture(scope="module")
def cluster_here() -> Iterator[None]:
    """A cluster on this machine, as the command starts it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", "local")
        patch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)
        patch.setenv("OMP_NUM_THREADS", "1")  # rounding depends on how many there are
        patch.setattr(os, "cpu_count", lambda: 3)
        patch.setattr(cluster, "STORE", 80 * 2**20)
        cluster._connect(3)
        yield
        assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
        ray.shutdown()


def jobs(count: int, metric: Callable[[str, Sample], float] = TASK.metric) -> list[Job]:
    task = replace(TASK, metric=metric)
    return [Job(task, sample, SPECS, timed=False) for sample in TASK.samples(count, 0)]


@pytest.mark.usefixtures("cluster_here")
@pytest.mark.parametrize("workers", ["2", pytest.param("3", marks=pytest.mark.slow)])
def test_the_results_are_those_of_one_process_and_it_goes_on_where_another_stopped(
    directory: str, tmp_path: Path, workers: str
) -> None:
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    assert evaluated(directory, alone).exit_code == 0
    shared.mkdir()
    (shared / "run.json").write_bytes((alone / "run.json").read_bytes())
    begun = (alone / "rows.jsonl").read_text().splitlines(keepends=True)[:10]
    (shared / "rows.jsonl").write_text("".join(begun))
    result = evaluated(directory, shared, "--executor", "ray", "--workers", workers, "--resume")
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert (shared / "run.json").read_bytes() == (alone / "run.json").read_bytes()
    rows = rows_in(shared)
    assert rows == rows_in(alone)
    assert {path.name for path in shared.iterdir()} == {
        "run.json",
        "rows.jsonl",
        "bundle.json",
        ".lock",
    }


@pytest.mark.slow
@pytest.mark.usefixtures("cluster_here")
def test_a_worker_that_is_killed_at_work_costs_no_sample(directory: str, tmp_path: Path) -> None:
    at_work = tmp_path / "worker"
    third = jobs(3)[2].sample

    def stuck(prediction: str, sample: Sample) -> float:
        """Waits, in the third sample, to be killed; nobody comes a second time."""
        if sample.name == third.name and not at_work.exists():
            at_work.write_text(str(os.getpid()))
            time.sleep(600)
        return float(len(prediction))

    killed: list[int] = []

    def kill() -> None:
        while not (at_work.exists() and at_work.read_text()):
            time.sleep(0.01)
        killed.append(int(at_work.read_text()))
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    with RayCluster(directory, "query-aware", 2) as execute:
        came = {job.sample.name: list(rows) for job, rows in execute(iter(jobs(6, stuck)))}
    killer.join(10)
    assert killed
    assert os.getpid() not in killed
    with Local(partial(load, directory), "query-aware") as execute:
        wanted = {job.sample.name: list(rows) for job, rows in execute(jobs(6, stuck))}
    assert list(wanted) == [str(n) for n in range(6)]
    for rows in (*came.values(), *wanted.values()):
        for row in rows:
            for name in TIMES:
                row.pop(name)
    assert came == wanted


@pytest.mark.slow
@pytest.mark.usefixtures("cluster_here")
def test_a_sample_that_kills_every_worker_ends_the_run(
    directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "TRIES", 2)  # a worker takes seconds to start

    def deadly(prediction: str, sample: Sample) -> float:
        with (tmp_path / "tries").open("a") as file:
            file.write(".")
        os._exit(1)

    with (
        pytest.raises(ClusterFailed, match="sample '0' of document lost its worker 2 times"),
        RayCluster(directory, "query-aware", 1) as execute,
    ):
        list(execute(jobs(1, deadly)))
    assert (tmp_path / "tries").read_text() == ".."


@pytest.mark.slow
@pytest.mark.usefixtures("cluster_here")
def test_errors_of_workers_are_those_of_one_process(directory: str, tmp_path: Path) -> None:
    with (
        pytest.raises(ModelNotFound, match="holds no model"),
        RayCluster(str(tmp_path), "query-aware", 1) as execute,
    ):
        list(execute(jobs(1)))
    result = evaluated(directory, tmp_path / "x", "--executor", "ray", "--workers", "9")
    assert result.exit_code == 2
    assert "not room for 9 workers" in result.stderr


@pytest.mark.usefixtures("cluster_here")
def test_a_cluster_without_room_is_not_waited_for_without_end_or_a_word(
    directory: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where the machine of all workers is gone: what is hired finds no place."""
    monkeypatch.setenv(cluster.PATIENCE, "0.3")
    monkeypatch.setattr(cluster, "TICK", 0.1)
    monkeypatch.setattr(cluster, "share", lambda machines, workers: WorkerShare(1, 99, 0))
    with (
        pytest.raises(ClusterFailed, match=r"1 machine.*has started a worker.*--resume"),
        RayCluster(directory, "query-aware", 1) as execute,
    ):
        list(execute(jobs(1)))
    said = [record.getMessage() for record in caplog.records]
    assert all("takes 99 free CPU(s)" in line and cluster.PATIENCE in line for line in said)
    assert len(said) == 2


@pytest.mark.parametrize("said", ["0", "-1", "soon", "nan", "inf"])
def test_patience_is_a_number_of_seconds(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cluster.PATIENCE, said)
    with pytest.raises(InvalidParameter, match=said):
        cluster._patience()


def test_workers_run_the_versions_that_the_results_name() -> None:
    cluster._check(cluster.versions_of_results())
    with pytest.raises(ClusterFailed, match=r"'torch': \('1.0', "):
        cluster._check({**cluster.versions_of_results(), "torch": "1.0"})


@pytest.mark.parametrize(
    ("machines", "workers", "expected"),
    [
        ([{"CPU": 8}, {"CPU": 4}], None, WorkerShare(2, 4, 0)),
        ([{"CPU": 8}, {"CPU": 4}], 3, WorkerShare(3, 4, 0)),
        ([{"CPU": 8}, {"CPU": 4}], 12, WorkerShare(12, 1, 0)),
        ([{"CPU": 2}], 1, WorkerShare(1, 2, 0)),
        ([{}, {"CPU": 16, "GPU": 4}, {"CPU": 16, "GPU": 4}], None, WorkerShare(8, 1, 1)),
        ([{}, {"CPU": 16, "GPU": 4}], 3, WorkerShare(3, 1, 1)),
    ],
)
def test_workers_share_what_there_is(
    machines: list[dict[str, int]], workers: int | None, expected: WorkerShare
) -> None:
    assert share(machines, workers) == expected


@pytest.mark.parametrize(
    ("machines", "workers", "says"),
    [([{"CPU": 2}], 3, "2 CPU"), ([{"CPU": 9, "GPU": 1}], 2, "1 GPU"), ([{}], None, "0 CPU")],
)
def test_a_cluster_that_is_too_small_is_refused(
    machines: list[dict[str, int]], workers: int | None, says: str
) -> None:
    with pytest.raises(ClusterFailed, match=says):
        share(machines, workers)


def test_no_cluster_at_the_address_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(address: str, **options: object) -> None:
        raise ConnectionError("nobody there\nat all")

    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with pytest.raises(ClusterFailed, match=r"'10.0.0.1:6379': no Ray cluster .*nobody there\)"):
        cluster._connect(None)


def test_workers_need_a_cluster(tmp_path: Path) -> None:
    arguments = ["eval", "--model", "nowhere", "--out", str(tmp_path / "x"), "--workers", "2"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "add --executor ray" in result.stderr
    assert not (tmp_path / "x").exists()
    assert isinstance(find_executor("local", "nowhere", "query-aware", 1), Local)


def test_without_ray_one_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "foveate_lab.eval.executors.ray")
    result = evaluated("nowhere", tmp_path / "x", "--executor", "ray")
    assert result.exit_code == 2
    assert "pip install 'foveate[ray]'" in result.stderr
    assert not (tmp_path / "x").exists()


def test_an_error_that_comes_from_another_process_reads_the_same() -> None:
    error = MissingPackage("ANLS", "rapidfuzz", "eval")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is MissingPackage
    assert str(again) == str(error)
