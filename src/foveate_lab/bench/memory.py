"""Peak memory of a piece of work."""

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
    """Return the peak of the work in bytes above what was in use before.

    Counts allocations by PyTorch on a GPU and resident memory on Linux; None elsewhere.
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
        CLEAR.write_text("5")  # resets the high-water mark
        before = resident("VmRSS")
        work()
        return resident("VmHWM") - before


@contextmanager
def freed_at_once() -> Iterator[None]:
    """Return freed memory to the system at once inside the context, so that resident means in use.

    By default glibc keeps some of it, a different amount in each process: the peak of the same
    prefill varied between 178 and 260 MB. Enter it before a process's first large tensor, because
    memory that glibc kept earlier is reused. On exit glibc's thresholds are set to the values it
    reaches by itself once large tensors have been freed. A no-op elsewhere than on Linux.
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
    """Return the bytes in main memory without garbage. Linux with glibc.

    ``malloc_trim`` also releases small freed tensors, which glibc keeps by itself while one behind
    them is alive.
    """
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return resident("VmRSS")


def resident(name: str) -> int:
    """Return the bytes in main memory on Linux: now ("VmRSS") or the peak ("VmHWM").

    The peak counts since the process began or CLEAR was last written to.
    """
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])
