"""Exclusion of full CUDA graphs from passes that read a prompt.

A full graph contains the attention of all layers and runs without Python, so nothing would be
compressed in it. vLLM takes one for every pass in which each request gets a single token, and so
also for a prompt whose last chunk is one token long. In piecewise graphs attention runs in Python
between the pieces, as without graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foveate.vllm.vllm_api import CUDAGraphMode


def without_full_graphs(runner: Any, reading: Callable[[], bool]) -> None:
    """Keep a model runner from choosing a full graph while ``reading()`` is true. Supports both of
    vLLM's runners.
    """
    if hasattr(runner, "cudagraph_dispatcher"):
        _exclude_full(runner.cudagraph_dispatcher, reading)
    elif hasattr(runner, "gather_batch_req_state"):
        _hide_uniform_length(runner, reading)


def _exclude_full(dispatcher: Any, reading: Callable[[], bool]) -> None:
    """Add full graphs to the ``invalid_modes`` of the first runner's dispatcher."""
    dispatch = dispatcher.dispatch

    def dispatch_without_full(*args: Any, **options: Any) -> Any:
        if reading():
            refused = options.get("invalid_modes") or ()
            options["invalid_modes"] = {CUDAGraphMode.FULL, *refused}
        return dispatch(*args, **options)

    dispatcher.dispatch = dispatch_without_full


def _hide_uniform_length(runner: Any, reading: Callable[[], bool]) -> None:
    """Report passes of the second runner as not uniform: its full graphs need the same number of
    new tokens for each request. Data-parallel ranks exchange this number, so all of them choose the
    same kind of graph.
    """
    gather = runner.gather_batch_req_state

    def gather_without_length(*args: Any, **options: Any) -> Any:
        state, uniform = gather(*args, **options)
        return state, None if reading() else uniform

    runner.gather_batch_req_state = gather_without_length
