"""Foveate's policies inside vLLM: prompts are compressed in place, and the blocks that become empty
go back to vLLM's pool, so that more requests fit into it.

vLLM needs nothing but a policy, in a variable, or on the command line

    FOVEATE_POLICY=mixkv:budget=20% vllm serve MODEL
    foveate serve MODEL --policy mixkv:budget=20%

or in Python, ``LLM(MODEL, additional_config={"foveate": {"policy": "mixkv:budget=20%"}})``: the
plug-in below sets the worker and the scheduler (``activation``). All imports of vLLM are lazy and
go through ``vllm_api``.
"""

from __future__ import annotations

import os
import sys
from typing import Any


def register() -> None:
    """Register Foveate with vLLM, which calls this in each of its processes (entry point
    ``vllm.general_plugins``).

    A no-op under a version of vLLM, or on a platform, that Foveate does not support, unless a
    policy is set: vLLM itself may run there.

    Raises:
        UnsupportedEngine: a policy is set where it cannot be served.
    """
    from foveate.errors import UnsupportedEngine
    from foveate.vllm.startup.excepthook import print_errors_last

    print_errors_last()
    try:
        from foveate.vllm.startup.registration import register_all

        register_all()
    except UnsupportedEngine as error:
        from foveate.defaults import VARIABLE

        if any('"foveate"' in word for word in sys.argv[1:]):
            raise
        if os.environ.get(VARIABLE):
            why = f"{error} To serve without Foveate, unset {VARIABLE}."
            raise UnsupportedEngine(why) from None


def __getattr__(name: str) -> Any:
    if name == "Worker":
        from foveate.vllm.worker.worker import FoveateWorker

        return FoveateWorker
    if name == "Scheduler":
        from foveate.vllm.scheduler.scheduler import scheduler_of

        return scheduler_of
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
