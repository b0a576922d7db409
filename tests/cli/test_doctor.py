"""``foveate doctor``: what is there and what lacks, of the machine and of a model's folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from foveate.cli import doctor
from foveate.defaults import PLACE
from foveate.loading import requirements
from foveate.loading.checkpoint import INDEX
from tests import zoo
from tests.zoo.text_models import sliding_config

from .conftest import Foveate

SCREEN = (80, 24)


@pytest.fixture
def screen(foveate: Foveate, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What it prints on a terminal of 80 columns, which has to fit."""
    monkeypatch.setenv("COLUMNS", str(SCREEN[0]))

    def run(*arguments: object, status: int = 0) -> str:
        result = foveate("doctor", *arguments)
        assert result.exit_code == status, (result.output, result.exception)
        assert max(map(len, result.stdout.splitlines())) <= SCREEN[0]
        assert "…" not in result.stdout
        return str(result.stdout)

    return run


def test_the_machine_fits_one_screen(screen: Any) -> None:
    lines = screen().splitlines()
    assert len(lines) <= SCREEN[1]
    assert lines[0].startswith("python 3.")
    assert {line.split()[0] for line in lines if line.strip()} >= set(doctor.EXTRAS)


def test_what_lacks_is_named_with_the_line_that_brings_it(
    screen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_installed", lambda name: name not in ("scipy", "pyarrow"))
    said = screen()
    assert "needs scipy" in said
    assert "report,parquet" in said.split("pip install 'foveate[")[1].replace("vllm,", "")


def test_every_extra_for_users_is_looked_at() -> None:
    listed = {extra for extra in doctor.EXTRAS if doctor._required(extra)}
    assert listed == set(doctor.EXTRAS)


def test_a_models_folder(screen: Any, llava: Path) -> None:
    said = screen(llava)
    assert "LlavaProcessor" in said
    assert "can be compressed" in said
    assert f"foveate run --model {llava}" in said.replace("\n", " ")


def test_what_a_folder_lacks(screen: Any, llava: Path, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(llava, folder)
    (folder / "model.safetensors").unlink()
    (folder / INDEX).write_text('{"weight_map": {"a": "one.safetensors"}}')
    (folder / "tokenizer.json").unlink()
    said = " ".join(screen(folder, status=1).split())
    assert "1 of 1 files are missing: one.safetensors" in said
    assert "no processor found" in said


@pytest.mark.skipif(requirements.importable("torchvision"), reason="torchvision is installed")
def test_a_package_that_its_processor_needs(screen: Any, llava: Path, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(llava, folder)
    (folder / "processor_config.json").unlink()
    zoo.build("qwen2_vl").config.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text('{"processor_class": "Qwen2VLProcessor"}')
    said = screen(folder, status=1)
    assert "\npip install torchvision torch==" in said


def test_a_model_that_cannot_be_compressed(screen: Any, tmp_path: Path) -> None:
    sliding_config().save_pretrained(tmp_path)
    said = " ".join(screen(tmp_path, status=1).split())
    assert "none of its layers has full attention" in said
    assert "weights none" in said


def test_json(as_json: Any, llava: Path, tmp_path: Path) -> None:
    found = as_json("doctor")
    assert found["extras"]["demo"] == []
    assert found["versions"].keys() >= {"python", "torch", "transformers", "foveate"}
    assert found["model"] == []
    parts = {one["part"]: one for one in as_json("doctor", llava)["model"]}
    assert [one["fine"] for one in parts.values()] == [True] * 5
    assert str(llava / PLACE) in parts["profile"]["said"]
