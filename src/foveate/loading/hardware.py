"""What computes, and with what: results and timings say it."""

from __future__ import annotations

import os
import platform
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch


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
    """Of packages, by name."""
    return {name: _version(name) for name in names}


def versions_of_results() -> dict[str, str]:
    """Return the versions that results depend on: Python's and those of three packages."""
    return {"python": platform.python_version(), **versions("foveate", "torch", "transformers")}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # Foveate, from a checkout that is not installed
        return str(import_module(name).__version__)


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
