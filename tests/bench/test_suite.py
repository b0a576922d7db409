"""The GPU suite: what it writes, how it goes on, and what it says where a part goes wrong."""

from __future__ import annotations

import json
import time
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from foveate.bench.alone import Heads, anew, drawn, work
from foveate.bench.suite import Setting, run, run_suite, wrong
from foveate.bench.suite.apart import Outcome, _listen
from foveate.bench.suite.kernels import compared
from foveate.bench.suite.parts import PARTS
from foveate.bench.suite.rows import attempted, table
from foveate.core.composition import policy
from foveate.errors import InvalidInput

QUICK = Setting(device="cpu", quick=True, kernels="reference")
OURS = [name for name in PARTS if name != "kvpress"]  # whose Python has to be named
KERNEL = {"kernel": "column_sums", "dtype": "bfloat16", "d": 64}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Parts end at once, as told; which were run is noted."""
    told = SimpleNamespace(outcomes={}, ran=[])

    def apart(name: str, setting: Setting, limit: int) -> Outcome:
        told.ran.append(name)
        return told.outcomes.get(name, Outcome())

    monkeypatch.setattr(run, "apart", apart)
    return told


def test_a_run_goes_on_with_what_was_not_done(measured: Any, tmp_path: Path) -> None:
    measured.outcomes["steps"] = Outcome(
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
    def interrupted(name: str, setting: Setting, limit: int) -> Outcome:
        if name == "ragged":
            raise KeyboardInterrupt
        return Outcome(rows=[{**KERNEL, "ok": True}] if name == "kernels" else [])

    monkeypatch.setattr(run, "apart", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_suite(QUICK, tmp_path)
    assert set(json.loads((tmp_path / "gpu.json").read_text())["parts"]) == {"kernels", "attention"}
    page = (tmp_path / "gpu.md").read_text()
    assert "1 comparisons with the reference; 0 are wrong" in page
    assert page.count("Not measured yet") == len(PARTS) - 2


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
        Setting()
    with pytest.raises(InvalidInput, match="Add --quick"):
        Setting(device="cpu")
    with pytest.raises(InvalidInput, match="device 'tpu'"):
        Setting(device="tpu")


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
    outcome = Outcome()
    # what has arrived is taken even if the time is up
    found = _listen(receiver, time.monotonic(), 7, outcome)
    assert found == (state, reason)
    assert outcome.rows == [{"ms": 1.0}]


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
