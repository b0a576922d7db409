"""Export of trained weights into the package, in float16.

    python -m training.export [--eye RUN/checkpoint.pt] [--lora RUN/lora.safetensors] [--to DIR]

Weights without an option stay unchanged in the package.
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
    """Extract the parts from the checkpoints, and write them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--eye", type=Path)
    parser.add_argument("--lora", type=Path)
    parser.add_argument("--to", type=Path, default=WEIGHTS)
    a = parser.parse_args()
    a.to.mkdir(parents=True, exist_ok=True)
    if a.eye:
        state = torch.load(a.eye, weights_only=True)["student"]
        write(a.to / "eye.safetensors", llava_weights(state))
    if a.lora:
        write(a.to / "lora.safetensors", load_file(a.lora))


def llava_weights(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tower's and the projector's weights under LLaVA's names."""
    return {
        new + key.removeprefix(old): value
        for key, value in state.items()
        for old, new in PARTS.items()
        if key.startswith(old)
    }


def write(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write tensors to a file, and print a line about it."""
    save_file({key: value.half().contiguous() for key, value in tensors.items()}, path)
    print(f"{path}: {len(tensors)} tensors, {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
