"""The record sees deliberate changes, and takes those that were made on purpose."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from . import recording
from .commands import ROOT
from .values import fields, same

CHANGES = (  # a constant, a message and an exit code; the runs that show it, and what is said
    ("VALUE = 0.15", "VALUE = 0.6", "tensors/*recommended*", "mask"),
    ("inside a compress() block", "inside a block", "error/*block in block", ": message: this"),
    ("raise typer.Exit(2) from None", "raise typer.Exit(4) from None", "command/*methods nothing",
     ": code: 2 -> 4"),
)  # fmt: skip


@pytest.mark.slow
def test_a_changed_constant_message_and_exit_code_are_seen(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src")
    for old, new, _, _ in CHANGES:
        places = [p for p in (tmp_path / "src").rglob("*.py") if old in p.read_text("utf-8")]
        assert places, f"{old!r} is nowhere: name another constant, message or exit code"
        for place in places:
            place.write_text(place.read_text("utf-8").replace(old, new), "utf-8")
    path = os.pathsep.join([str(tmp_path / "src"), str(ROOT / "demo_model")])
    only = ",".join(pattern for _, _, pattern, _ in CHANGES)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.record", "--only", only],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    for _, _, pattern, says in CHANGES:
        kind, _, title = pattern.partition("*")
        title = title.removesuffix("*")
        assert any(says in line for line in lines if line.startswith(kind) and title in line)


def test_floats_are_compared_to_the_bit_on_one_machine_and_near_on_another() -> None:
    values = torch.linspace(0, 1, 50)
    old = fields({"logits": values, "kept": [3, 4]}, {})
    near = fields({"logits": values * (1 + 1e-6), "kept": [3, 4]}, {})
    far = fields({"logits": values * (1 + 1e-3), "kept": [3, 5]}, {})
    assert not same(old["logits"], near["logits"], exact=True)
    assert same(old["logits"], near["logits"], exact=False)
    assert not same(old["logits"], far["logits"], exact=False)
    assert not same(old["kept[]"], far["kept[]"], exact=False)


def test_an_accepted_change_is_listed_with_both_values_and_seen_no_more() -> None:
    record = {"outcomes": {"chat/1 a": {"text": "x", "ids": 1}}, "unsure": {}, "repairs": {}}
    new = {"chat/1 a": {"text": "y", "ids": 1}}
    found = list(recording.compared(record, new, exact=True))
    assert list(recording.told(found)) == ["chat/1 a: text: x -> y"]
    assert recording.accept(record, found, "chat/*:text", "a better word", exact=True) == 1
    repair = record["repairs"]["chat/1 a"]
    assert (repair["was"], repair["now"]) == ({"text": "x"}, {"text": "y"})
    assert list(recording.compared(record, new, exact=True)) == []
    assert list(recording.compared(record, {"chat/1 a": {"text": "x", "ids": 1}}, exact=True))
