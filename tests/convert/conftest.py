"""One conversion of each layout, shared by all tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from foveate.loading.model import Loaded, load
from foveate_lab.convert import convert

from . import literal, originals

LAYOUTS = ("llava", "mobilevlm", "internvl", "internvl_llama", "qwen_vl")


@dataclass(frozen=True)
class Converted:
    """An original's weights and forward pass, and the model that it was converted to."""

    source: Path
    target: Path
    state: originals.State
    forward: Any
    loaded: Loaded


@pytest.fixture(scope="session")
def make(tmp_path_factory):
    """Makes and converts an original, once for each name."""
    done: dict[str, Converted] = {}

    def made(name: str) -> Converted:
        if name not in done:
            folder = tmp_path_factory.mktemp(name)
            done[name] = _converted(name, folder / "original", folder / "converted")
        return done[name]

    return made


def _converted(name: str, source: Path, target: Path) -> Converted:
    llama = ("LlamaForCausalLM",) if name == "internvl_llama" else ()
    kind = name.removesuffix("_llama")
    state = getattr(originals, kind)(source, *llama)
    vision = source / "clip"
    convert(source, target, vision if vision.exists() else None)
    return Converted(source, target, state, getattr(literal, kind), load(str(target)))
