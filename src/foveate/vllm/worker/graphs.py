"""Which passes may run in a full CUDA graph: those that read no prompt.

A full graph holds the attention of all layers and runs without Python, so nothing would be
compressed in it. vLLM takes one for every pass in which each request gets a single token, and so
for a prompt whose last chunk is one token long. In piecewise graphs attention stands between the
pieces and runs as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foveate.vllm.vllm_api import CUDAGraphMode


def without_full_graphs(runner: Any, reading: Callable[[], bool]) -> None:
    """Lets a model runner, of either kind, choose no full graph while ``reading()``."""
    if hasattr(runner, "cudagraph_dispatcher"):
        _refused(runner.cudagraph_dispatcher, reading)
    elif hasattr(runner, "gather_batch_req_state"):
        _not_uniform(runner, reading)


def _refused(dispatcher: Any, reading: Callable[[], bool]) -> None:
    """In the first runner, which can be told what not to choose."""
    dispatch = dispatcher.dispatch

    def chosen(*args: Any, **options: Any) -> Any:
        if reading():
            refused = options.get("invalid_modes") or ()
            options["invalid_modes"] = {CUDAGraphMode.FULL, *refused}
        return dispatch(*args, **options)

    dispatcher.dispatch = chosen


def _not_uniform(runner: Any, reading: Callable[[], bool]) -> None:
    """In the second runner, whose full graphs are for passes with the same number of new tokens for
    each request: one that has no such number has none. The ranks of data parallelism tell each
    other this number, so all of them come to the same kind of graph.
    """
    gather = runner.gather_batch_req_state

    def gathered(*args: Any, **options: Any) -> Any:
        state, uniform = gather(*args, **options)
        return state, None if reading() else uniform

    runner.gather_batch_req_state = gathered
