"""Description of the hardware and the versions, noted with results and timings."""

from __future__ import annotations

import os
import platform
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch


def hardware() -> dict[str, Any]:
    """Describe this machine: processor, cores, PyTorch's threads, and accelerators by name."""
    return {
        "processor": processor(torch.device("cpu")),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "accelerators": [
            torch.cuda.get_device_name(device) for device in range(torch.cuda.device_count())
        ],
    }


def versions(*names: str) -> dict[str, str]:
    """Return the versions of packages, by name."""
    return {name: _version(name) for name in names}


def versions_of_results() -> dict[str, str]:
    """Return the versions that results depend on: Python, Foveate, torch and transformers."""
    return {"python": platform.python_version(), **versions("foveate", "torch", "transformers")}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # Foveate from a checkout that is not installed
        return str(import_module(name).__version__)


def processor(device: torch.device) -> str:
    """Return the product name of a device: "NVIDIA H100", or for a CPU "AMD EPYC (AVX512)" with the
    instruction set that PyTorch uses.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text().splitlines() if facts.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = next(iter(names), platform.processor() or platform.machine())
    return f"{name} ({torch.backends.cpu.get_cpu_capability()})"
