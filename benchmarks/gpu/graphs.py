"""CUDA graphs of decoding steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from foveate.errors import UnsupportedKernel

WARM = 3
"""Steps that are taken before a capture."""


def graphed(step: Callable[[], Tensor], *, same: bool = False) -> Callable[[], Any]:
    """The step as a CUDA graph, after ``WARM`` steps on a stream of their own that make what is
    made once. Capturing runs nothing, and the replay goes on where the last of them stopped.

    Args:
        step: works on tensors that stay where they are.
        same: it gives the same every time, which the replay is checked against.

    Raises:
        UnsupportedKernel: the replay gives something else.
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
