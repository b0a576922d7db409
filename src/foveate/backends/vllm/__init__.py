"""Foveate's policies inside vLLM: prompts are compressed where they lie, and the blocks that this
empties go back to vLLM's pool, so that more requests fit into it.

Start vLLM with this worker and a policy, on the command line

    vllm serve MODEL --worker-cls foveate.backends.vllm.Worker \
        --additional-config '{"foveate": {"policy": "mixkv:budget=20%"}}'

or in Python, ``LLM(MODEL, worker_cls=..., additional_config=...)``. Nothing of vLLM is imported
before it is needed, and all of it through ``vllm_api``.
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
    if name != "Worker":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from foveate.backends.vllm.worker import FoveateWorker

    return FoveateWorker
