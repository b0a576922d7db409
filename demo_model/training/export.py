"""Writes what was trained into the package, in float16.

    python -m training.export [--eye RUN/checkpoint.pt] [--lora RUN/lora.safetensors] [--to DIR]

What is not named stays as the package has it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from foveate_demo.vision import WEIGHTS

PARTS = {"eye.tower.": "vision_tower.", "eye.projector.": "multi_modal_projector."}


def main() -> None:
    """Takes the parts out of the checkpoints, and writes them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--eye", type=Path)
    parser.add_argument("--lora", type=Path)
    parser.add_argument("--to", type=Path, default=WEIGHTS)
    a = parser.parse_args()
    a.to.mkdir(parents=True, exist_ok=True)
    if a.eye:
        write(a.to / "eye.safetensors", seen(torch.load(a.eye, weights_only=True)["student"]))
    if a.lora:
        write(a.to / "lora.safetensors", load_file(a.lora))


def seen(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tower's and the projector's weights, under the names that LLaVA has for them."""
    return {
        new + key.removeprefix(old): value
        for key, value in state.items()
        for old, new in PARTS.items()
        if key.startswith(old)
    }


def write(path: Path, tensors: dict[str, Tensor]) -> None:
    """One file, and a line about it."""
    save_file({key: value.half().contiguous() for key, value in tensors.items()}, path)
    print(f"{path}: {len(tensors)} tensors, {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
