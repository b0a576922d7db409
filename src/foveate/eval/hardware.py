"""What computes, and with what: results and timings say it."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from foveate import __version__


def hardware() -> dict[str, Any]:
    """This machine: its processor, cores, PyTorch's threads, and its accelerators by name."""
    return {
        "processor": processor(torch.device("cpu")),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "accelerators": [
            torch.cuda.get_device_name(device) for device in range(torch.cuda.device_count())
        ],
    }


def versions(*names: str) -> dict[str, str]:
    """Of packages; Foveate's own is known from a checkout that is not installed, too."""
    return {name: __version__ if name == "foveate" else version(name) for name in names}


def processor(device: torch.device) -> str:
    """What computes there, by the name that its maker gave it: "NVIDIA H100", or on a CPU such as
    "AMD EPYC (AVX512)", with the instructions that PyTorch uses.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text().splitlines() if facts.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = next(iter(names), platform.processor() or platform.machine())
    return f"{name} ({torch.backends.cpu.get_cpu_capability()})"
