"""A tiny vision-language model, loaded as the commands load it."""

from __future__ import annotations

import pytest

from foveate.loading.model import Loaded, load
from tests.zoo.directory import save_llava


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of the model; an image is 9 tokens."""
    return str(save_llava(tmp_path_factory.mktemp("llava")))


@pytest.fixture(scope="session")
def loaded(directory: str) -> Loaded:
    """The model."""
    return load(directory)
