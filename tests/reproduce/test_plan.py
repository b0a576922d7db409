"""The same rows and page, whoever asks the parts of a plan, and however often it is broken off."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from foveate.cli.app import app
from foveate_lab.eval.bundle import read_bundles, seal
from foveate_lab.eval.executors.job import Job, Local, Row
from foveate_lab.eval.keyed_rows import key_of
from foveate_lab.eval.results import read
from foveate_lab.reproduce import EXPERIMENTS, reproduction
from foveate_lab.reproduce.experiment import Outcome
from foveate_lab.reproduce.registry import folders
from foveate_lab.reproduce.running import lab
from foveate_lab.reproduce.stand_in import write
from tests.eval.test_eval import TIMES
from tests.eval.test_ray import cluster_here
from tests.reproduce.tiny import stand_in
from tests.zoo.directory import save_llava

__all__ = ["cluster_here"]

IDS = ("david:table6", "prefixkv:table17", "prefixkv:fig2", "david:table5")
"""Answers; answers with a profile; a probe; answers that are timed."""


class Asked:
    """A tiny model, and the command that asks it."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch):
        self.directory = str(save_llava(folder / "llava"))
        self.data = folder / "data"
        read = {name for one in IDS for name in folders(EXPERIMENTS[one])}
        write(self.data, 3, read)
        self.options = ["--stand-in", "--limit", "3"]
        stand_in(patch, self.directory)

    def __call__(self, out: Path, *more: str) -> Any:
        self.bring_data(out)
        done = CliRunner().invoke(app, ["reproduce", *more, *self.options, "--out", str(out)])
        assert done.exit_code in (0, 2), (done.output, done.exception)
        return done

    def part(self, out: Path, *more: str) -> None:
        """The same for rows that are merged: what is drawn of them alone is not looked at."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reproduction, "outcome", lambda lab, one: Outcome(one, (), ()))
            self(out, *more)

    def trimmed(
        self, whole: Path, out: Path, lost: Callable[[dict[str, Any]], bool], *asks: str
    ) -> None:
        """What a run that asks this would have left: a whole one's folder without the other rows.
        It has all that the run asks for, and nothing else.
        """
        shutil.copytree(whole, out)
        (path,) = out.glob("rows/*/rows.jsonl")
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if not lost(json.loads(line))))
        seal(path.parent, read(path.parent).rows)
        said = json.loads(self(out, *asks, "--plan", "--json").stdout)
        assert said["answers"] == said["profiles"] == 0
        assert 0 < said["rows"] == said["there"] == len(rows_of(out)) < len(lines)

    def bring_data(self, out: Path) -> None:
        """Copy the data of the stand-in, which need not be drawn for every run."""
        shutil.copytree(self.data, out / "data", dirs_exist_ok=True)


def rows_of(out: Path) -> list[dict[str, Any]]:
    (path,) = out.glob("rows/*/rows.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{name: row[name] for name in row if name not in TIMES} for row in rows]


def page_of(out: Path) -> list[Any]:
    """The numbers of the page, without measured times and memory, which are marked."""
    found = json.loads((out / "reproduced.json").read_text())["experiments"]
    for one in found:
        for cells in (line["cells"] for table in one["tables"] for line in table["lines"]):
            for name in [name for name, cell in cells.items() if cell["cost"]]:
                assert cells.pop(name)["measured"] is not None
    return found


def in_folder(out: Path) -> Callable[[dict[str, Any]], bool]:
    """Whether a folder has a row of that task, sample and spec."""
    there = {key_of(row) for row in rows_of(out)}
    return lambda row: key_of(row) in there


def assert_same(out: Path, alone: Path) -> None:
    assert rows_of(out) == rows_of(alone)
    assert page_of(out) == page_of(alone)
    assert all(bundle.manifest for bundle in read_bundles(out))


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    with pytest.MonkeyPatch.context() as patch:
        yield Asked(tmp_path_factory.mktemp("plan"), patch)


@pytest.fixture(scope="module")
def alone(asked: Asked, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody disturbed."""
    out = tmp_path_factory.mktemp("alone") / "out"
    said = json.loads(asked(out, *IDS, "--plan", "--json").stdout)
    assert not list(out.glob("rows"))
    asked(out, *IDS)
    assert said["rows"] == said["answers"] == len(rows_of(out))
    assert said["there"] == 0
    assert said["profiles"] == len(list(out.glob("profiles/*/*.json"))) > 0
    assert said["hours"] is None
    return out


def test_what_is_left_costs_what_its_rows_cost(asked: Asked, alone: Path, tmp_path: Path) -> None:
    whole = json.loads(asked(alone, *IDS, "--plan", "--json").stdout)
    assert (whole["there"], whole["answers"], whole["hours"]) == (whole["rows"], 0, 0)
    out = shutil.copytree(alone, tmp_path / "out")
    (path,) = out.glob("rows/*/rows.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    lost = [row for row in rows if row["task"] == "ocrbench" and row["place"] == 1]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows if row not in lost))
    (one,) = json.loads(asked(out, *IDS, "--plan", "--json").stdout)["each"]
    there = [row for row in rows if row["task"] == "ocrbench" and row["place"] != 1]
    assert (one["task"], one["prompts"], one["answers"]) == ("ocrbench", 1, len(lost))
    assert one["seconds"] == pytest.approx(sum(row["spent_s"] for row in there) / 2)
    assert one["tokens"] == round(sum(row["tokens"] for row in there) / len(there))


def test_a_run_that_is_killed_gives_the_same(asked: Asked, alone: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    asked.bring_data(out)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.reproduce.tiny", asked.directory]
    done = subprocess.run(
        [*command, "reproduce", "3", str(out), *IDS, *asked.options],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "3"
    assert_same(out, alone)


@pytest.mark.parametrize("how", ["experiments", "samples"])
def test_halves_are_merged_into_the_same(
    asked: Asked, alone: Path, tmp_path: Path, how: str
) -> None:
    one, two, out = (tmp_path / name for name in ("one", "two", "out"))
    if how == "experiments":
        asked.part(one, *IDS[:2])
        asked.trimmed(alone, two, lambda row: row["task"] == "ocrbench", *IDS[1:])
    else:
        asked.part(two, *IDS, "--part", "2/2")
        assert {row["place"] for row in rows_of(two)} == {1}
        asked.trimmed(alone, one, in_folder(two), *IDS, "--part", "1/2")
    done = asked(out, *IDS, "--merge", str(one), "--merge", str(two))
    assert_same(out, alone)
    (path,) = out.glob("rows/*/rows.jsonl")
    count = len(path.read_text().splitlines())
    assert done.stderr == f"{count} of {count} rows are there.\n"


@pytest.fixture(scope="module")
def batched(asked: Asked, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose answers are given two at a time."""
    out = tmp_path_factory.mktemp("batched") / "out"
    asked(out, *IDS, "--batch", "2")
    return out


def shared_out(out: Path) -> list[dict[str, Any]]:
    """The rows that are asked in batches: those of a task with a mark are asked alone."""
    return [row for row in rows_of(out) if "," not in row["task"]]


def test_in_batches_all_caches_are_those_of_prompts_alone(alone: Path, batched: Path) -> None:
    """The third sample is alone in its batch; all are under rules that prune while decoding."""
    names = ("place", "question", "tokens", "asked_tokens", "kept_tokens", "kv_bytes", "answers")
    wanted = {key_of(row): [row[name] for name in names] for row in rows_of(alone)}
    rows = rows_of(batched)
    assert all([row[name] for name in names] == wanted[key_of(row)] for row in rows)
    prunes = re.compile("distance=|when=")
    found = {
        (row["place"], bool(prunes.search(row["spec"])), row.get("batch", 1))
        for row in shared_out(batched)
    }
    together = {(0, False, 2), (1, False, 2), (2, False, 1)}
    assert found == together | {(place, True, 1) for place in range(3)}


class OutOfOrder(Local):
    """Does jobs as workers of a cluster do: in another order, and a job's rows come together."""

    def _execute(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Iterator[Row]]]:
        for job, rows in super()._execute(reversed(list(jobs))):
            yield job, iter(list(rows))


@pytest.mark.parametrize("how", ["broken off", "out of order", "parts"])
def test_batches_follow_from_the_plan_alone(
    asked: Asked, batched: Path, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit: who is answered beside whom is the same, whoever asks, and whatever is there."""
    out, settings = tmp_path / "out", (*IDS, "--batch", "2")
    if how == "broken off":
        shutil.copytree(batched, out)
        (path,) = out.glob("rows/*/rows.jsonl")
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for n, line in enumerate(lines) if n % 3))
        asked(out, *settings)
    elif how == "out of order":
        monkeypatch.setattr(
            lab, "find_executor", lambda *of, loading, **more: OutOfOrder(loading, "query-aware")
        )
        asked(out, *settings)
    else:
        one, two = tmp_path / "1", tmp_path / "2"
        asked.part(two, *settings, "--part", "2/2")
        asked.trimmed(batched, one, in_folder(two), *settings, "--part", "1/2")
        assert {row["place"] for row in shared_out(one)} == {0, 1}
        asked(out, *settings, "--merge", str(one), "--merge", str(two))
    assert_same(out, batched)


@pytest.mark.slow
@pytest.mark.usefixtures("cluster_here")
def test_two_workers_give_the_same(asked: Asked, batched: Path, tmp_path: Path) -> None:
    """What :class:`OutOfOrder` stands for, on a cluster."""
    asked(tmp_path / "out", *IDS, "--batch", "2", "--executor", "ray", "--workers", "2")
    assert_same(tmp_path / "out", batched)


def other(**changes: Any) -> Callable[[Path], None]:
    """Changes how the rows of a folder say they were made."""

    def change(out: Path) -> None:
        (path,) = out.glob("rows/*/run.json")
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def others(**changes: Any) -> Callable[[Path], None]:
    """Changes the rows themselves."""

    def change(out: Path) -> None:
        (path,) = out.glob("rows/*/rows.jsonl")
        rows = [{**json.loads(line), **changes} for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    return change


def another_profile(out: Path) -> None:
    path = next(out.glob("profiles/*/*.json"))
    path.write_text(path.read_text().replace("0.", "0.1", 1))


def other_data(out: Path) -> None:
    found = json.loads((out / "drawn.json").read_text())
    (out / "drawn.json").write_text(json.dumps(found | {"ocrbench, 3": "0"}))


VERSIONS = {"foveate": "0", "torch": "1.0", "transformers": "4"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (other(weights="0"), "it has weights='0', and this run '"),
        (other(limit=9), "it has limit=9, and this run 3"),
        (other(batch=2), "it has batch=2, and this run 1"),
        (other(versions=VERSIONS), "it has foveate='0', and this run"),
        (others(question="x"), "sample [^ ]+ of [a-z_]+.* is another question there"),
        (others(prediction="x"), "of its answers are not the other's, first that of"),
        (other_data, "its data of ocrbench, 3 samples differ"),
        (another_profile, "its numbers differ from those of the same profile"),
        (lambda out: shutil.rmtree(out / "rows"), "holds no rows of .*llava"),
    ],
)
def test_what_is_asked_otherwise_is_not_merged(
    asked: Asked, alone: Path, tmp_path: Path, change: Callable[[Path], None], said: str
) -> None:
    theirs, out = shutil.copytree(alone, tmp_path / "theirs"), tmp_path / "out"
    change(theirs)
    for folder in theirs.glob("rows/*"):
        seal(folder, read(folder).rows)
    done = asked(out, *IDS, "--merge", str(alone), "--merge", str(theirs))
    assert done.exit_code == 2
    assert re.search(said, " ".join(done.output.replace("│", "").split()))
    assert not [line for path in out.glob("rows/*/rows.jsonl") for line in path.open()]
    assert not list(out.glob("profiles/*/*.json"))


@pytest.mark.parametrize("said", ["0/2", "3/2", "half", "1"])
def test_a_part_is_one_of_so_many(asked: Asked, tmp_path: Path, said: str) -> None:
    done = asked(tmp_path / "out", *IDS, "--part", said)
    assert done.exit_code == 2
    assert "give K/N with K from 1 to N" in done.output
