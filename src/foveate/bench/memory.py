"""How much memory some work needs at its peak."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from pathlib import Path

import torch

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_of(work: Callable[[], object], device: torch.device) -> int | None:
    """Bytes at the peak of the work above what is held before it: allocated by PyTorch on a GPU,
    resident in main memory on Linux, unknown (None) elsewhere.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        return torch.cuda.max_memory_allocated(device) - before
    if not sys.platform.startswith("linux"):
        work()
        return None
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what is free goes back, so that all use is seen
    CLEAR.write_text("5")  # the high-water mark begins anew
    before = _kibibytes("VmRSS")
    work()
    return 1024 * (_kibibytes("VmHWM") - before)


def _kibibytes(name: str) -> int:
    (line,) = (x for x in STATUS.read_text().splitlines() if x.startswith(f"{name}:"))
    return int(line.split()[1])
