"""A package that a processor or tokenizer needs, and that is not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoProcessor
from typer.testing import CliRunner

from foveate import packages
from foveate.cli.app import app
from foveate.errors import MissingPackage, UnsupportedModel
from foveate.loading import requirements
from foveate.loading.model import ModelSource, load, read_reader
from tests import zoo
from tests.zoo.directory import tokenizer

VISION = """
Qwen2VLVideoProcessor requires the Torchvision library but it was not found in your environment.
Check out the instructions on the installation page: https://pytorch.org/get-started/locally/
"""
WORDS = "`tiktoken` is required to read a `tiktoken` file. Install it with `pip install tiktoken`."


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the packages is installed."""
    monkeypatch.setattr(requirements, "importable", lambda module: False)


@pytest.mark.usefixtures("nothing")
@pytest.mark.parametrize(
    ("message", "installed", "line"),
    [
        (VISION, "2.13.0", "pip install torchvision torch==2.13.0"),
        (
            VISION,
            "2.10.0+cu128",
            "pip install torchvision torch==2.10.0 "
            "--index-url https://download.pytorch.org/whl/cu128",
        ),
        (WORDS, "2.13.0", "pip install sentencepiece tiktoken"),
        (
            f"{VISION} and timm",
            "2.13.0",
            "pip install torchvision torch==2.13.0 && pip install timm",
        ),
    ],
)
def test_the_line_that_installs_it_leaves_pytorch_as_it_is(
    message: str, installed: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "version", lambda name: installed)
    error = requirements.missing_package("the processor of 'm'", ImportError(message), "a/b")
    assert str(error).startswith("the processor of 'm' needs the package '")
    assert str(error).endswith(f": {line}.")


@pytest.mark.usefixtures("nothing")
def test_a_reader_of_videos_that_transformers_fails_to_look_up_is_torchvisions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(place: str, **allowed: bool) -> None:
        raise AttributeError("VIDEO_PROCESSOR_MAPPING has no '_extra_content'")

    source = ModelSource("m", str(tmp_path), trusted=False)
    monkeypatch.setattr(AutoProcessor, "from_pretrained", fail)
    with pytest.raises(MissingPackage, match="'torchvision': pip install torchvision"):
        read_reader(source, sees=True)
    monkeypatch.setattr(requirements, "importable", lambda module: True)
    with pytest.raises(UnsupportedModel, match="cannot load the processor of 'm': VIDEO"):
        read_reader(source, sees=True)


def test_an_error_about_something_else_is_none_of_a_package() -> None:
    assert requirements.missing_package("a", ValueError("no such file"), "a/b") is None


@pytest.mark.usefixtures("nothing")
def test_a_folder_without_any_vocabulary_lacks_no_package(tmp_path: Path) -> None:
    error = ValueError(WORDS)
    assert requirements.missing_package("a", error, str(tmp_path)) is None
    (tmp_path / "tokenizer.model").touch()
    assert requirements.missing_package("a", error, str(tmp_path)) is not None


@pytest.fixture
def qwen(tmp_path: Path) -> Path:
    """A Qwen2-VL's directory without its weights."""
    zoo.build("qwen2_vl").config.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    kinds = {
        "processor_class": "Qwen2VLProcessor",
        "image_processor_type": "Qwen2VLImageProcessor",
        "video_processor_type": "Qwen2VLVideoProcessor",
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(kinds))
    return tmp_path


@pytest.mark.skipif(requirements.importable("torchvision"), reason="torchvision is installed")
def test_it_is_said_before_any_weights_are_looked_for(qwen: Path) -> None:
    with pytest.raises(MissingPackage, match="'torchvision': pip install torchvision torch=="):
        load(str(qwen))
    done = CliRunner().invoke(app, ["run", "--model", str(qwen)])
    assert done.exit_code == 2
    assert "pip install torchvision torch==" in done.stderr.splitlines()[-1]


UNMATCHED = """
import foveate
from foveate.cli.app import app
from typer.testing import CliRunner

for command in (["doctor"], ["run", "--prompt", "hello"]):
    done = CliRunner().invoke(app, command)
    print(done.exit_code, done.output, end="")
try:
    foveate.Chat
except foveate.FoveateError as error:
    print(error)
"""


def test_a_torchvision_built_for_another_torch_is_one_line(tmp_path: Path) -> None:
    """A package that raises what the real one does, where the real one does: at import."""
    package, facts = tmp_path / "torchvision", tmp_path / "torchvision-0.1.0.dist-info"
    package.mkdir()
    facts.mkdir()
    raising = 'raise RuntimeError("operator torchvision::nms does not exist")'
    (package / "__init__.py").write_text(raising)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 0.1.0\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", UNMATCHED],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert [line[:9] for line in lines] == ["2 Error: ", "2 Error: ", "torchvisi"]
    for line in lines:
        assert "torchvision 0.1.0 cannot be imported beside torch" in line
        assert "(operator torchvision::nms does not exist)" in line
        assert "pip uninstall -y torchvision && pip install torchvision torch==" in line
