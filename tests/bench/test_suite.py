"""The GPU suite: what it writes, how it goes on, and what it says where a part goes wrong."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import foveate
from benchmarks.gpu import (
    SuiteSetting,
    beside_attention,
    checks,
    contexts,
    facts,
    findings,
    half,
    kernels,
    latents,
    run,
    run_suite,
    steps,
    wrong,
)
from benchmarks.gpu.kernels import compared
from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.processes import ENDED, PartOutcome, _listen, side_by_side
from benchmarks.gpu.rows import attempted, table
from benchmarks.layer_work import Heads, anew, drawn, work
from foveate.compression.composition import policy
from foveate.errors import InvalidInput
from foveate.loading import hardware
from foveate_lab.cli import bench_suite

QUICK = SuiteSetting(device="cpu", quick=True, kernels="reference")
OURS = [name for name in PARTS if name != "kvpress"]  # whose Python has to be named
KERNEL = {"kernel": "column_sums", "dtype": "bfloat16", "d": 64}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Parts end at once, as told; which were run is noted."""
    told = SimpleNamespace(outcomes={}, ran=[])

    def apart(name: str, setting: SuiteSetting, limit: int, heard: Any) -> PartOutcome:
        told.ran.append(name)
        return told.outcomes.get(name, PartOutcome())

    monkeypatch.setattr(run, "apart", apart)
    return told


def test_a_run_goes_on_with_what_was_not_done(measured: Any, tmp_path: Path) -> None:
    measured.outcomes["steps"] = PartOutcome(
        "stopped", "not done after 75 s", 75.0, [{"policy": "full", "ms": 2.5}]
    )
    run_suite(QUICK, tmp_path)
    assert measured.ran == OURS
    page = (tmp_path / "gpu.md").read_text()
    assert "**Stopped: not done after 75 s.**" in page
    assert "| full |  | 2.5 |" in page
    measured.ran.clear()
    assert run_suite(QUICK, tmp_path)["steps"]["state"] == "stopped"
    assert measured.ran == ["steps"]
    measured.ran.clear()
    run_suite(QUICK, tmp_path, only=["half"])
    assert measured.ran == ["half"]
    measured.ran.clear()
    run_suite(QUICK, tmp_path, anew=True)
    assert measured.ran == OURS


def test_parts_that_an_interrupted_run_has_done_are_on_the_page(
    measured: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(name: str, setting: SuiteSetting, limit: int, heard: Any) -> PartOutcome:
        if name == "steps":
            heard(PartOutcome("stopped", ENDED, 3.0, [{"policy": "full", "ms": 2.5}]))
            raise KeyboardInterrupt
        return PartOutcome(rows=[{**KERNEL, "ok": True}] if name == "kernels" else [])

    monkeypatch.setattr(run, "apart", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_suite(QUICK, tmp_path)
    parts = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    assert list(parts) == ["kernels", "ragged", "steps"]
    assert parts["steps"]["rows"] == [{"policy": "full", "ms": 2.5}]
    page = (tmp_path / "gpu.md").read_text()
    assert "1 comparisons with the reference; 0 are wrong" in page
    assert f"**Stopped: {ENDED}.**" in page
    assert page.count("Not measured yet") == len(PARTS) - 3


def test_each_fact_is_passed_failed_or_not_run_by_its_threshold() -> None:
    assert {finding.verdict for finding in findings({})} == {"not run"}
    assert {fact.part for fact in facts.FACTS} - {*PARTS} == {"vllm"}  # measured elsewhere
    ragged = {"what": "heads of one length, CUDA graph", "to_copy": 0.8}
    steps_rows = [
        {"policy": "full", "how": "eager", "ms": 2.0, "waits": 0},
        {"policy": "snapkv:budget=20%", "how": "eager", "ms": 2.2, "waits": 0},
        {"policy": "full", "how": "CUDA graph", "ms": 2.0},
        {"policy": "snapkv:budget=20%", "how": "CUDA graph", "failed": "out of memory"},
    ]
    parts = {
        "ragged": {"rows": [ragged]},
        "steps": {"rows": steps_rows},
        "kernels": {"rows": [{**KERNEL, "not_run": "no interpreter"}]},
        "tests": {"rows": [{"test": "a", "ok": True}, {"test": "b", "failed": "no"}]},
    }
    verdicts = {each.fact.name: each.verdict for each in findings(parts)}
    assert verdicts["Ragged decoding, GB/s to a copy's"] == "pass"
    assert verdicts["Step, dense at 20 %, to the full cache (eager)"] == "fail"
    assert verdicts["Step, dense at 20 %, to the full cache (CUDA graph)"] == "not run"
    assert verdicts["Waits of the host in a step"] == "pass"
    assert verdicts["Wrong kernels"] == "not run"
    assert verdicts["Failed tests on the device"] == "fail"
    assert [verdicts[fact.name] for fact in facts.FACTS if fact.part == "vllm"] == ["not run"]


def test_facts_name_rows_that_their_parts_measure() -> None:
    measured = {*steps.POLICIES, *steps.RULES}
    assert {facts.SNAPKV, facts.ADAKV, "full", "kivi", "turboquant"} <= measured
    assert {"h2o", "snapkv"} <= {*half.POLICIES}
    assert 16384 in half.TOKENS
    assert 32768 in beside_attention.TOKENS
    assert facts.SNAPKV in contexts.READ


def test_kernels_over_codes_agree_with_their_references_in_the_interpreter() -> None:
    rows = {row["kernel"]: row for row in kernels.rows(QUICK)}
    assert rows["turbo_decode"].get("ok", "not_run" in rows["turbo_decode"])
    assert rows["quantised_decode"].get("ok", "not_run" in rows["quantised_decode"])
    ours, other = list(latents.rows(QUICK))[::-1]
    assert 0 < ours["difference"] < latents.ALLOWED
    assert other["ms"] > 0


def test_results_of_another_machine_are_not_gone_on_with(measured: Any, tmp_path: Path) -> None:
    run_suite(QUICK, tmp_path, only=["half"])
    whole = json.loads((tmp_path / "gpu.json").read_text())
    whole["machine"]["device"] = "NVIDIA H100"
    (tmp_path / "gpu.json").write_text(json.dumps(whole))
    with pytest.raises(InvalidInput, match="device 'NVIDIA H100', now"):
        run_suite(QUICK, tmp_path)
    (tmp_path / "gpu.json").write_text("{")
    with pytest.raises(InvalidInput, match="is no result of the suite"):
        run_suite(QUICK, tmp_path)
    with pytest.raises(InvalidInput, match="Did you mean 'kernels'"):
        run_suite(QUICK, tmp_path, only=["kernel"])


def test_where_it_cannot_run_it_says_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InvalidInput, match=r"needs a CUDA GPU.*--device cpu --quick"):
        SuiteSetting()
    with pytest.raises(InvalidInput, match="Add --quick"):
        SuiteSetting(device="cpu")
    with pytest.raises(InvalidInput, match="device 'tpu'"):
        SuiteSetting(device="tpu")


@pytest.mark.parametrize(
    ("sent", "state", "reason"),
    [
        ([("row", {"ms": 1.0}), ("done", "")], "done", ""),
        ([("row", {"ms": 1.0}), ("failed", "ValueError: no")], "failed", "ValueError: no"),
        ([("row", {"ms": 1.0}), None], "failed", ""),  # it died
        ([("row", {"ms": 1.0})], "stopped", "not done after 7 s"),
    ],
)
def test_rows_that_arrived_stay_however_a_part_ends(sent: Any, state: str, reason: str) -> None:
    receiver, sender = Pipe(duplex=False)
    for one in sent:
        if one is None:
            sender.close()
        else:
            sender.send(one)
    outcome, heard = PartOutcome(), []
    # what has arrived is taken even if the time is up
    found = _listen(receiver, time.monotonic(), 7, outcome, lambda: heard.append(1))
    assert found == (state, reason)
    assert outcome.rows == [{"ms": 1.0}]
    assert heard == [1]


def test_a_row_that_fails_says_why_and_the_next_is_measured() -> None:
    def short() -> dict[str, float]:
        raise torch.cuda.OutOfMemoryError("Tried to allocate 80.00 GiB.\nmore")

    rows = [attempted({"tokens": 131072}, short), attempted({"tokens": 16384}, lambda: {"ms": 2.0})]
    assert rows[0]["failed"] == "out of memory: Tried to allocate 80.00 GiB."
    assert table(rows, {"tokens": "tokens", "ms": "ms", "x": "x"}) == [
        "| tokens | ms | x |",
        "|---|---|---|",
        "| 131,072 | out of memory: Tried to allocate 80.00 GiB. |  |",
        "| 16,384 | 2 |  |",
    ]


@pytest.mark.parametrize(
    ("ours", "ok"), [([1.0, 2.0], True), ([1.0, 2.1], False), ([1.0, float("nan")], False)]
)
def test_a_kernel_is_wrong_beyond_its_tolerance(ours: list[float], ok: bool) -> None:
    results = {"triton": torch.tensor(ours), "reference": torch.tensor([1.0, 2.0])}
    row = KERNEL | compared(results.__getitem__, "column_sums", torch.float32)
    json.dumps(row, allow_nan=False)
    assert row["ok"] is ok
    assert wrong({"kernels": {"rows": [row]}}) == ([] if ok else [row])


def test_what_cannot_run_on_a_cpu_is_not_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_interpreter(*_: Any) -> dict[str, Any]:
        raise TypeError("only 0-dimensional arrays can be converted to Python scalars")

    monkeypatch.setattr(kernels, "compared", no_interpreter)
    rows = list(kernels.rows(QUICK))
    assert wrong({"kernels": {"rows": rows}}) == []
    page = "\n".join(kernels.page(rows))
    assert page.startswith("0 comparisons with the reference; 0 are wrong or failed.")
    assert f"{len(rows)} not run here: TypeError: only 0-dimensional" in page
    failed = [KERNEL | {"failed": "OutOfResources"}]
    assert wrong({"kernels": {"rows": failed}}) == failed  # on a GPU
    tests = [
        {"test": "a", "ok": True},
        {"test": "b", "failed": "no"},
        {"test": "c", "not_run": "x"},
    ]
    assert wrong({"tests": {"rows": tests}}) == tests[1:2]


def test_parts_that_go_together_end_within_four_minutes() -> None:
    """With 25 s for the imports, and 2 s for the end of each."""
    assert ", ".join(PARTS) == bench_suite.PARTS  # which --help shows without importing them
    limits = {name: part.limit for name, part in PARTS.items()}
    for together in ("kernels ragged steps attention half", "tests headlines contexts"):
        names = together.split()
        assert sum(limits[name] + 2 for name in names) + 25 <= 240


def test_the_suite_runs_from_a_checkout_that_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def version(name: str) -> str:
        if name == "foveate":
            raise PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(hardware, "version", version)
    assert run.machine(QUICK)["versions"]["foveate"] == foveate.__version__


DIES = """
import os, signal
import pytest

@pytest.mark.parametrize("n", range(3))
def test_passes(n): pass

def test_dies(): os.kill(os.getpid(), signal.SIGKILL)

def test_fails(): assert 1 == 2, "not the same"

def test_stuck(): raise RuntimeError("CUDA error: an illegal memory access was encountered")

def test_skips(): pytest.skip("needs CUDA")
"""


def test_tests_that_take_their_process_down_cost_the_others_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "test_it.py").write_text(DIES)
    monkeypatch.setattr(checks, "QUICK", (str(tmp_path / "test_it.py"),))
    rows = {row["test"].rpartition("::")[2]: row for row in checks.rows(QUICK)}
    assert [name for name, row in rows.items() if "ok" in row] == [
        f"test_passes[{n}]" for n in range(3)
    ]
    assert rows["test_dies"]["failed"] == "its process ended with status -9"
    assert "not the same" in rows["test_fails"]["failed"]
    assert "CUDA error" in rows["test_stuck"]["failed"]
    assert rows["test_skips"]["not_run"] == "needs CUDA"
    page = "\n".join(checks.page(list(rows.values())))
    assert "3 tests passed, 3 failed; 1 not run here." in page


def test_side_by_side_a_process_that_dies_is_a_row() -> None:
    def counts(to: int) -> Iterator[dict[str, Any]]:
        yield from ({"n": n} for n in range(to))
        if to == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if to == 3:
            raise ValueError("three")

    found = list(side_by_side([({"to": to}, partial(counts, to)) for to in (1, 2, 3)]))
    assert sorted(row["n"] for row in found if "n" in row) == [0, 0, 0, 1, 1, 2]
    assert sorted(row["failed"] for row in found if "to" in row) == [
        "ValueError: three",
        "its process ended with status -9",
    ]


@pytest.mark.parametrize("spec", ["snapkv:window=4", "h2o", "csp", "lookm", "criticalkv:window=4"])
def test_the_work_alone_keeps_the_budget_of_a_drawn_layer(spec: str) -> None:
    chosen = policy(spec, budget=16)
    layer = drawn(chosen, 64, Heads(4, 2, 8), torch.device("cpu"))
    pairs = work(chosen, anew(chosen, layer))
    assert pairs.counts.tolist() == [[16, 16]]


@pytest.mark.slow
def test_the_whole_suite_runs_at_toy_sizes(tmp_path: Path) -> None:
    found = run_suite(QUICK, tmp_path)
    assert {name: part["reason"] for name, part in found.items() if part["state"] != "done"} == {}
    assert wrong(found) == []
    reasons = {row["failed"] for part in found.values() for row in part["rows"] if "failed" in row}
    assert reasons == {"needs CUDA"}
    page = (tmp_path / "gpu.md").read_text()
    assert "**NOT A GPU.**" in page
    assert all(f"## {part.title}" in page for part in PARTS.values())
    assert page.count("Not measured yet") == 1
