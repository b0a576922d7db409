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


def without_full_graphs(runner: Any, reading: Callable[[], bool]) -> None:
    """Lets a model runner, of either kind, choose no full graph while ``reading()``."""
    if hasattr(runner, "cudagraph_dispatcher"):
        _refused(runner.cudagraph_dispatcher, reading)
    elif getattr(runner, "cudagraph_manager", None) is not None:
        _passed_over(runner.cudagraph_manager, reading)


def _refused(dispatcher: Any, reading: Callable[[], bool]) -> None:
    """In the first runner, which can be told what not to choose."""
    dispatch = dispatcher.dispatch

    def chosen(*args: Any, **options: Any) -> Any:
        if reading():
            refused = options.get("invalid_modes") or ()
            options["invalid_modes"] = {CUDAGraphMode.FULL, *refused}
        return dispatch(*args, **options)

    dispatcher.dispatch = chosen


def _passed_over(manager: Any, reading: Callable[[], bool]) -> None:
    """In the second runner, whose full graphs are for passes with the same number of new tokens for
    each request: one that is not told so has none.
    """
    dispatch = manager.dispatch

    def chosen(
        num_reqs: int, num_tokens: int, uniform: int | None, *args: Any, **options: Any
    ) -> Any:
        if reading():
            uniform = None
        return dispatch(num_reqs, num_tokens, uniform, *args, **options)

    manager.dispatch = chosen
