"""A tiny vision-language model, two images, and what it says to them without any plug-in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.zoo.directory import save_llava


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the model; an image is 9 tokens."""
    return save_llava(tmp_path_factory.mktemp("llava"))


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Image files of noise, each another one."""
    folder = tmp_path_factory.mktemp("pictures")
    random = torch.Generator().manual_seed(0)
    paths = [folder / f"{number}.png" for number in range(4)]
    for path in paths:
        pixels = torch.randint(0, 256, (12, 12, 3), generator=random, dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(path)
    return paths
