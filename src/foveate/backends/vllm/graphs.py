"""Which passes may run in a full CUDA graph: those that read no prompt.

A full graph holds the attention of all layers and runs without Python, so nothing would be
compressed in it. vLLM takes one for every pass in which each request gets a single token, and so
for a prompt whose last chunk is one token long. In piecewise graphs attention stands between the
pieces and runs as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foveate.backends.vllm.vllm_api import CUDAGraphMode


def without_full_graphs(dispatcher: Any, reading: Callable[[], bool]) -> None:
    """Lets a model runner's ``CudagraphDispatcher`` choose no full graph while ``reading()``."""
    dispatch = dispatcher.dispatch

    def chosen(*args: Any, **options: Any) -> Any:
        if reading():
            refused = options.get("invalid_modes") or ()
            options["invalid_modes"] = {CUDAGraphMode.FULL, *refused}
        return dispatch(*args, **options)

    dispatcher.dispatch = chosen
