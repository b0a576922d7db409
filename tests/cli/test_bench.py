"""``foveate bench``: what it prints, and what it refuses."""

from __future__ import annotations

import gc
import io
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from benchmarks.gpu import SuiteSetting, run
from benchmarks.gpu.processes import PartOutcome
from foveate.cli import main
from foveate_lab.bench import peer

from .conftest import Foveate, refused

QUICK = ("--tokens", 128, "--rounds", 1, "--steps", 1, "--memory", "1MB")


def test_it_prints_a_row_for_every_method(
    llama: Path, foveate: Foveate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    asked = ("--method", "knorm", "--method", "adakv:window=8", "--budget", "25%")
    result = foveate("bench", "--model", llama, *asked, *QUICK)
    assert result.exit_code == 0, result.stderr
    assert "a prompt of 128 tokens" in " ".join(result.stdout.split())
    lines = [line.split() for line in result.stdout.splitlines() if line.split()]
    rows = [line for line in lines if line[0] in ("full", "knorm")]
    assert [row[:3] for row in rows[:2]] == [["full", "-", "128"], ["knorm", "25%", "32"]]
    assert len(rows) == 4  # and their batches
    lines = [line for line in result.stdout.splitlines() if str(llama) not in line]
    assert max(map(len, lines)) <= 80  # but for the directory, which is not broken
    assert "…" not in result.stdout
    assert f"Next: foveate eval --model {llama}" in " ".join(result.stdout.split())


def test_by_default_it_measures_two_methods_and_says_what_it_left_out(
    llama: Path, foveate: Foveate
) -> None:
    result = foveate("bench", "--model", llama, *QUICK[:-2])
    assert result.exit_code == 0, result.stderr
    said = result.stdout.splitlines()
    assert [line.split()[0] for line in said if "20%" in line] == ["recommended", "snapkv"]
    assert "Left out: other methods (--method" in result.stdout
    assert "batches (--memory 1GiB)" in " ".join(result.stdout.split())


def test_json_holds_the_machine_the_settings_and_the_rows(
    llama: Path, as_json: Callable[..., Any]
) -> None:
    found = as_json("bench", "--model", llama, "--method", "knorm", "--budget", "25%", *QUICK)
    assert (found["tokens"], found["rounds"], found["steps"]) == (128, 1, 1)
    assert {"foveate", "torch", "transformers"} <= found["versions"].keys()
    full, knorm = found["rows"]
    assert full["kv_share"] == 1.0
    assert knorm["kept_tokens"] == 32
    assert knorm["batch"] > 2 * full["batch"]
    assert found["kvpress"] == []


@pytest.fixture(autouse=True, scope="module")
def _frozen() -> Iterator[None]:
    """Garbage is collected before each peak of memory: among what is new alone."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A stand-in for kvpress, whose side runs in this process: tests/bench has it in its own."""

    def run(command: Sequence[str], *, input: str, **_: Any) -> CompletedProcess[str]:
        out = io.StringIO()
        with patch("sys.stdin", io.StringIO(input)), redirect_stdout(out):
            runpy.run_path(command[1], run_name="__main__")
        return CompletedProcess(command, 0, out.getvalue(), "")

    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "bench" / "stand_in")
    monkeypatch.syspath_prepend(peer.SIDE.parent)
    monkeypatch.setattr(peer, "subprocess", SimpleNamespace(run=run, CalledProcessError=OSError))
    yield
    for name in ("kvpress", "kvpress_presses", "memory"):
        sys.modules.pop(name, None)


def test_methods_that_the_peer_lacks_are_named(
    llama: Path, foveate: Foveate, stand_in: None
) -> None:
    asked = ("--method", "knorm", "--method", "mixkv:window=8", "--budget", "25%")
    beside = ("--against", "kvpress", "--peer-python", sys.executable)
    result = foveate("bench", "--model", llama, *asked, *beside, *QUICK)
    assert result.exit_code == 0, result.stderr
    assert "KnormPress" in result.stdout
    assert "kvpress has no press for mixkv." in " ".join(result.stdout.split())


def test_bad_arguments_are_named(llama: Path, foveate: Foveate) -> None:
    for arguments, words in (
        (("--memory", "20%"), "'20%' is no number of bytes"),
        (("--against", "kvpress"), "--against and --peer-python go together"),
        (("--layers", 2), "--layers 2 needs --dims"),
        (("--dims", "llava-7b"), "no shape named 'llava-7b'"),
        (("--budget", "0"), "keeps nothing"),
    ):
        result = foveate("bench", "--model", llama, *arguments)
        assert words in refused(result)


def test_options_of_the_suite_and_of_one_model_do_not_mix(tmp_path: Path, foveate: Foveate) -> None:
    for arguments, words in (
        (("--quick",), "--quick works only with --suite gpu"),
        (("--part", "steps"), "--part works only with --suite gpu"),
        (("--suite", "gpu", "--tokens", 1024), "leave --tokens out"),
        (("--suite", "gpu", "--device", "cpu", "--quick"), "name a folder for them with --out"),
        (("--suite", "gpu", "--device", "cpu", "--out", tmp_path), "Add --quick"),
    ):
        result = foveate("bench", *arguments)
        assert words in refused(result)
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_a_checkout_lacks_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = "PIL"

    def app(prog_name: str) -> None:
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    monkeypatch.setattr("foveate.cli.app.app", app)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "Error: Foveate needs the package 'pillow': pip install pillow.\n"
    )
    missing = "foveate.nowhere"  # ours: a fault, which nothing hides
    with pytest.raises(ModuleNotFoundError):
        main()


def test_a_wrong_kernel_is_named_and_the_status_is_1(
    tmp_path: Path, foveate: Foveate, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"kernel": "compaction", "dtype": "float16", "d": 64, "difference": 1.0, "allowed": 0.0}

    rows = {"kernels": [{**row, "ok": False}], "tests": [{"test": "test_it", "failed": "no"}]}

    def apart(name: str, setting: SuiteSetting, limit: int, heard: Any) -> PartOutcome:
        return PartOutcome(rows=rows.get(name, []))

    monkeypatch.setattr(run, "apart", apart)
    result = foveate("bench", "--suite", "gpu", "--device", "cpu", "--quick", "--out", tmp_path)
    assert result.exit_code == 1
    assert "Wrong: compaction (float16, head size 64); test_it." in result.stdout
    page = (tmp_path / "gpu.md").read_text()
    assert "NOT A GPU" in page
    assert "| compaction | float16 | 64 | 1 | 0 |" in page
