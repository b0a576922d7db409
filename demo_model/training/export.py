"""Writes what was trained into the package, in float16.

    python -m training.export --eye RUN/checkpoint.pt [--lora RUN/lora.safetensors] [--to DIR]

Without ``--lora`` the language model stays as it is.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from foveate_demo.vision import WEIGHTS

PARTS = {"eye.tower.": "vision_tower.", "eye.projector.": "multi_modal_projector."}


def main() -> None:
    """Takes the parts out of the checkpoints, and writes them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--eye", type=Path, required=True)
    parser.add_argument("--lora", type=Path)
    parser.add_argument("--to", type=Path, default=WEIGHTS)
    a = parser.parse_args()
    a.to.mkdir(parents=True, exist_ok=True)
    state = torch.load(a.eye, weights_only=True)["student"]
    eye = {
        new + key.removeprefix(old): value.half().contiguous()
        for key, value in state.items()
        for old, new in PARTS.items()
        if key.startswith(old)
    }
    lora = {key: value.half() for key, value in load_file(a.lora).items()} if a.lora else {}
    for name, tensors in (("eye", eye), ("lora", lora)):
        path = a.to / f"{name}.safetensors"
        save_file(tensors, path)
        print(f"{path}: {len(tensors)} tensors, {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
