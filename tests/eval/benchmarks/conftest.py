"""Small folders, as the authors of benchmarks release them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from foveate.prompts.sample import Sample
from foveate_lab.eval.task_registry import Task

Folder = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Writes images, and JSON under names without ".json"; under ".jsonl", lines of it."""

    def write(images: list[str], **files: Any) -> Path:
        for name in images:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (200, 100), "white").save(path)
        for name, content in files.items():
            lines = name.endswith(".jsonl")
            path = tmp_path / (name if lines else f"{name}.json")
            path.parent.mkdir(parents=True, exist_ok=True)
            text = "\n".join(map(json.dumps, content)) if lines else json.dumps(content)
            path.write_text(text, encoding="utf-8")
        return tmp_path

    return write


def samples(task: Task, count: int = 99) -> list[Sample]:
    """The first samples."""
    return list(task.samples(count, 0))
