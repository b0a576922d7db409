"""One decoding step after compression: eager, as a CUDA graph and compiled; and how often the host
waits for the device in it, which should be never.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks.gpu.models import SuiteSetting, measured_with, stepping, subject_of
from benchmarks.gpu.rows import NEEDS_CUDA, WARM, Row, attempted, graphed, milliseconds, table
from foveate.compression.composition import policy as policy_of
from foveate.hf import compress
from foveate.hf.model.internals import CACHE
from foveate_lab.bench.subject import Subject

MODEL, LAYERS, TOKENS = "qwen2-vl-7b", 4, 16384
POLICIES = ("full", "snapkv:budget=20%", "adakv:budget=20%")
RULES = ("prefixkv:budget=20%", "h2o:budget=20%,when=over_budget")
HOW = ("eager", "CUDA graph", "compiled")
WAITS = "synchroniz"  # in what PyTorch says


def rows(setting: SuiteSetting) -> Iterator[Row]:
    """Every policy in all three ways; rules that evict while decoding in the first alone. What has
    to be compiled comes last: that takes longer than all else.
    """
    subject = subject_of(MODEL, TOKENS, setting, layers=LAYERS)
    for how in HOW:
        for spec in (*POLICIES, *RULES) if how == "eager" else POLICIES:
            policy = _small(spec) if setting.quick else spec
            what = {"policy": spec, "how": how}
            yield attempted(what, _measured, subject, policy, how, setting)


def _small(spec: str) -> str:
    """What fits a toy prompt: its windows are longer than its budgets."""
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
        ms = milliseconds(work, repeats, setting.place)
        waits = synchronisations(step) if how == "eager" and setting.on_gpu else None
        return {"ms": ms, "waits": waits, "mib": session.bytes_held / 2**20}


def _compiled(subject: Subject, cache: Any) -> Callable[[], Any]:
    torch.compiler.reset()  # or the policies before it would count as recompilations
    model: Any = torch.compile(subject.model, dynamic=False)
    token = subject.ids[:, -1:].clone()
    return lambda: model(input_ids=token, **{CACHE: cache}).logits


def synchronisations(step: Callable[[], object]) -> int:
    """How often the host waits for the GPU in a step: by PyTorch's own count, and by calls of
    torch.cuda.synchronize, which that does not count.
    """
    step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with _explicit() as calls, warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return len(calls) + sum(WAITS in str(one.message) for one in said)


@contextmanager
def _explicit() -> Iterator[list[object]]:
    """Notes every call of torch.cuda.synchronize."""
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
    """All of them."""
    columns = {"policy": "policy", "how": "how", "ms": "ms a step", "waits": "waits", "mib": "MiB"}
    return [
        f"{MODEL}'s shape with {LAYERS} layers after {TOKENS:,} tokens. Aim: the host never waits.",
        "",
        *table(measured, columns),
    ]
