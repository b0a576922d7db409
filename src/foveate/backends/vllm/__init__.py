"""Foveate's policies inside vLLM: prompts are compressed where they lie, and the blocks that this
empties go back to vLLM's pool, so that more requests fit into it.

Start vLLM with this worker, this scheduler and a policy, on the command line

    foveate serve MODEL --policy mixkv:budget=20%

which is, in vLLM's own words,

    vllm serve MODEL --worker-cls foveate.backends.vllm.Worker \
        --scheduler-cls foveate.backends.vllm.Scheduler \
        --additional-config '{"foveate": {"policy": "mixkv:budget=20%"}}'

or in Python, ``LLM(MODEL, worker_cls=..., scheduler_cls=..., additional_config=...)``. Nothing of
vLLM is imported before it is needed, and all of it through ``vllm_api``.
"""

from __future__ import annotations

from typing import Any


def register() -> None:
    """What vLLM calls in each of its processes (entry point ``vllm.general_plugins``).

    Does nothing under a vLLM, or on a platform, that Foveate does not know: it may run without
    Foveate. Whoever asks for the worker there is told.
    """
    from foveate.errors import UnsupportedEngine

    try:
        from foveate.backends.vllm.registration import register_all

        register_all()
    except UnsupportedEngine:
        return


def __getattr__(name: str) -> Any:
    if name == "Worker":
        from foveate.backends.vllm.worker import FoveateWorker

        return FoveateWorker
    if name == "Scheduler":
        from foveate.backends.vllm.scheduler import scheduler_of

        return scheduler_of
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
