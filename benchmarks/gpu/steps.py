"""One decoding step after compression: eager, as a CUDA graph and compiled.

Also counts how often the host waits for the device in a step, which should be never.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks.gpu import latents
from benchmarks.gpu.models import SuiteSetting, measured_with, stepping, subject_of
from benchmarks.gpu.rows import NEEDS_CUDA, WARM, Row, attempted, graphed, milliseconds, table
from foveate.compression.composition import policy as policy_of
from foveate.hf import compress
from foveate.hf.model.internals import CACHE
from foveate_lab.bench.subject import Subject

MODEL, LAYERS, TOKENS = "qwen2-vl-7b", 4, 16384
POLICIES = ("full", "snapkv:budget=20%", "adakv:budget=20%")
RULES = ("prefixkv:budget=20%", "h2o:budget=20%,when=over_budget", "kivi", "turboquant")
HOW = ("eager", "CUDA graph", "compiled")
WAITS = "synchroniz"  # in PyTorch's warnings


def rows(setting: SuiteSetting) -> Iterator[Row]:
    """Yield attention over latents; then every policy in all three ways, except that policies that
    evict while decoding, or store codes, run only eagerly.

    Compiled steps come last, because compiling takes longest.
    """
    yield from latents.rows(setting)
    subject = subject_of(MODEL, TOKENS, setting, layers=LAYERS)
    for how in HOW:
        for spec in (*POLICIES, *RULES) if how == "eager" else POLICIES:
            policy = _small(spec) if setting.quick else spec
            about = {"policy": spec, "how": how}
            yield attempted(about, _measured, subject, policy, how, setting)


def _small(spec: str) -> str:
    """Return a spec that fits a toy prompt, with shorter windows."""
    return spec + ",window=4" if spec.startswith(("snapkv", "adakv")) else spec


def _measured(subject: Subject, spec: str, how: str, setting: SuiteSetting) -> dict[str, Any]:
    if how != "eager" and not setting.on_gpu:
        return {"failed": NEEDS_CUDA}
    repeats = 3 if setting.quick else 20
    with measured_with(setting), compress(subject.model, policy_of(spec)) as session:
        cache: Any = session.prefill(input_ids=subject.ids)
        if how != "eager":
            cache = session.fixed(repeats + 8 + WARM)
        step = stepping(subject, cache)
        work: Callable[[], Any] = step
        if how == "CUDA graph":
            work = graphed(step)
        if how == "compiled":
            work = _compiled(subject, cache)
        ms = milliseconds(work, repeats, setting.torch_device)
        waits = synchronisations(step) if how == "eager" and setting.on_gpu else None
        return {"ms": ms, "waits": waits, "mib": session.bytes_held / 2**20}


def _compiled(subject: Subject, cache: Any) -> Callable[[], Any]:
    torch.compiler.reset()  # otherwise earlier policies count as recompilations
    model: Any = torch.compile(subject.model, dynamic=False)
    token = subject.ids[:, -1:].clone()
    return lambda: model(input_ids=token, **{CACHE: cache}).logits


def synchronisations(step: Callable[[], object]) -> int:
    """Count how often the host waits for the GPU in a step.

    PyTorch's own count, plus calls of torch.cuda.synchronize, which it does not count.
    """
    step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with _explicit() as calls, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return len(calls) + sum(WAITS in str(warning.message) for warning in caught)


@contextmanager
def _explicit() -> Iterator[list[object]]:
    """Record every call of torch.cuda.synchronize."""
    calls: list[object] = []
    original = torch.cuda.synchronize

    def noted(device: Any = None) -> None:
        calls.append(device)
        original(device)

    torch.cuda.synchronize = noted
    try:
        yield calls
    finally:
        torch.cuda.synchronize = original


def page(measured: Sequence[Row]) -> list[str]:
    """Return the table of all rows."""
    columns = {"policy": "policy", "how": "how", "ms": "ms a step", "waits": "waits", "mib": "MiB"}
    return [
        f"{MODEL}'s shape with {LAYERS} layers after {TOKENS:,} tokens. Aim: the host never waits.",
        "",
        *table(measured, columns),
    ]
