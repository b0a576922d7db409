"""Rows of figures, and helpers to measure them, shared by the parts of the suite."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks import output
from foveate.errors import UnsupportedKernel
from foveate.hf.layer.stats import now

Row = dict[str, Any]
"""Figures by name, as stored in JSON. ``failed`` is the reason if there are none."""

NEEDS_CUDA = "needs CUDA"
WARM = 3
"""Steps before a capture."""


def attempted(what: Mapping[str, Any], work: Callable[..., Mapping[str, Any]], *of: Any) -> Row:
    """Return ``what`` with the figures of ``work(*of)``, or with the error in ``failed``."""
    try:
        result = dict(work(*of))
    except Exception as error:
        result = {"failed": why(error)}
    # the error is gone here, and with it the tensors that its traceback's frames referenced
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
    return {**what, **result}


def why(error: BaseException) -> str:
    """Describe an error in one line."""
    message = " ".join((str(error).strip().splitlines() or ["no message"])[0].split())
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return f"out of memory: {message}"
    return f"{type(error).__name__}: {message}"


def milliseconds(work: Callable[[], object], repeats: int, device: torch.device) -> float:
    """Return the median time on the device, after two warm-up calls that compile."""
    for _ in range(2):
        work()
    if device.type == "cuda":
        return median(_on_gpu(work) for _ in range(repeats))
    times = []
    for _ in range(repeats):
        start = now(device)
        work()
        times.append(1e3 * (now(device) - start))
    return median(times)


def _on_gpu(work: Callable[[], object]) -> float:
    event: Any = torch.cuda.Event
    start, end = (event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def graphed(step: Callable[[], Tensor], *, same: bool = False) -> Callable[[], Any]:
    """Capture the step as a CUDA graph, after ``WARM`` steps on a side stream that initialise
    state. Capturing runs nothing; the replay continues where the last step stopped.

    Args:
        step: a function of tensors with fixed addresses.
        same: the step returns the same every time; the replay is checked against it.

    Raises:
        UnsupportedKernel: the replay returns something else.
    """
    stream: Any = torch.cuda.Stream
    aside, current = stream(), torch.cuda.current_stream()
    aside.wait_stream(current)
    with torch.cuda.stream(aside):
        for _ in range(WARM):
            expected = step()
    current.wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    if same:
        graph.replay()
        torch.cuda.synchronize()
        if not torch.equal(out, expected):
            raise UnsupportedKernel("the captured step gives other numbers than the step itself.")
    return graph.replay


def table(rows: Sequence[Row], columns: Mapping[str, str]) -> list[str]:
    """Return the lines of a Markdown table.

    ``columns`` maps names of figures to headings. A failed row has the reason in its first empty
    cell.
    """
    return output.table(list(columns.values()), (_cells(row, columns) for row in rows))


def _cells(row: Row, columns: Mapping[str, str]) -> list[str]:
    left = [row["failed"]] if "failed" in row else []
    return [
        _cell(row[name]) if row.get(name) is not None else (left.pop() if left else "")
        for name in columns
    ]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value).replace("|", "\\|")
