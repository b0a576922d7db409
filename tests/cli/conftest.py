"""Tiny model directories, a picture, and the command line in a function."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from foveate.cli.app import app
from tests.zoo.directory import save_llama, save_llava

Foveate = Callable[..., Result]


@pytest.fixture
def foveate(monkeypatch: pytest.MonkeyPatch) -> Foveate:
    """Runs ``foveate`` with these arguments on a terminal of 100 columns."""
    monkeypatch.setenv("COLUMNS", "100")
    return lambda *arguments: CliRunner().invoke(app, [str(one) for one in arguments])


@pytest.fixture
def as_json(foveate: Foveate) -> Callable[..., Any]:
    """What a command prints with ``--json``, which must be all that is on stdout."""

    def run(*arguments: object) -> Any:
        result = foveate(*arguments, "--json")
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    return run


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a tiny text model."""
    return save_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a tiny vision-language model; an image is 9 tokens."""
    return save_llava(tmp_path_factory.mktemp("llava"))


@pytest.fixture(scope="session")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A picture, red on the left and blue on the right."""
    image = Image.new("RGB", (40, 30), (200, 20, 20))
    image.paste((20, 20, 200), (20, 0, 40, 30))
    path = tmp_path_factory.mktemp("pictures") / "picture.png"
    image.save(path)
    return path


def refused(result: Any) -> str:
    """The error message, after a check of what every refusal has in common."""
    assert result.exit_code == 2, (result.stdout, result.exception)
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    message: str = result.stderr
    assert message.startswith("Error: ")
    return message
