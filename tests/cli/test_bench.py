"""``foveate bench``: what it prints, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .conftest import Foveate, refused

QUICK = ("--tokens", 128, "--rounds", 1, "--steps", 1, "--memory", "1MB")


def test_it_prints_a_row_for_every_method(llama: Path, foveate: Foveate) -> None:
    asked = ("--method", "knorm", "--method", "adakv:window=8", "--budget", "25%")
    result = foveate("bench", "--model", llama, *asked, *QUICK)
    assert result.exit_code == 0, result.stderr
    assert "a prompt of 128 tokens" in " ".join(result.stdout.split())
    lines = [line.split() for line in result.stdout.splitlines() if line.split()]
    rows = {line[0]: line for line in lines if line[0] in ("full", "knorm")}
    assert rows["full"][1] == "128"
    assert rows["knorm"][1:3] == ["25%", "32"]


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
