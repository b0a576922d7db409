"""What the authors' own code returned for seeded random inputs: data alone, none of their code.

Each file's metadata names the repository, the commit, the function and its arguments. The files
named ``..._paper_...`` are what a reading of the paper's equations returned: where the code departs
from them (LOOK-M), or was never released (DAVID).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

DATA = Path(__file__).with_name("data")


def load(name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a file, and the arguments that the authors' function was called with."""
    path = DATA / f"{name}.safetensors"
    with safe_open(path, "pt") as file:
        arguments: dict[str, Any] = json.loads(file.metadata()["args"])
    return load_file(path), arguments


def papers(name: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file of one of the five papers, and its metadata: its arguments as text."""
    path = DATA / f"{name}.safetensors"
    with safe_open(path, "pt") as file:
        metadata: dict[str, str] = file.metadata()
    return load_file(path), metadata
