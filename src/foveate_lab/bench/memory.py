"""How much memory some work needs at its peak."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's names
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
    with freed_at_once():
        CLEAR.write_text("5")  # the high-water mark begins anew
        before = resident("VmRSS")
        work()
        return resident("VmHWM") - before


@contextmanager
def freed_at_once() -> Iterator[None]:
    """Inside, what is freed goes back to the system, so that resident is what is in use. Otherwise
    glibc keeps some of it, more in one process than in the next: the peak of one and the same
    prefill lay between 178 and 260 MB. It counts from a process's first large tensor on: what was
    kept before is used again. Afterwards glibc's thresholds are those that it arrives at by itself
    once large tensors have been freed. Elsewhere than on Linux, nothing changes.
    """
    if not sys.platform.startswith("linux"):
        yield
        return
    libc = ctypes.CDLL("libc.so.6")
    libc.malloc_trim(0)
    libc.mallopt(M_MMAP_THRESHOLD, 2**20)
    try:
        yield
    finally:
        libc.mallopt(M_MMAP_THRESHOLD, 2**25)
        libc.mallopt(M_TRIM_THRESHOLD, 2**26)


def in_use() -> int:
    """Bytes in main memory now, without garbage and without what glibc has for small tensors that
    were freed, which it cannot give back by itself while one behind them lives. Linux with glibc.
    """
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return resident("VmRSS")


def resident(name: str) -> int:
    """Bytes in main memory, on Linux: now ("VmRSS"), or at the most ("VmHWM") since the process
    began or CLEAR was written to.
    """
    (line,) = (x for x in STATUS.read_text().splitlines() if x.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])
