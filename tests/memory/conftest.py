"""Folders with config.json and the processor's configuration, and no weights."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from tests import zoo
from tests.zoo.directory import llava_processor


@pytest.fixture
def no_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would lower the peak is not looked for, which takes longer than all else."""
    module = import_module("foveate.memory.fit")  # the package has a function of that name
    monkeypatch.setattr(module, "_changes", lambda *_: ())


@pytest.fixture(scope="session")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny LLaVA; an image is 9 tokens."""
    folder = tmp_path_factory.mktemp("llava")
    zoo.build("llava").config.save_pretrained(folder)
    llava_processor().image_processor.save_pretrained(folder)
    return folder
