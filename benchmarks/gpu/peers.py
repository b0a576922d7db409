"""kvpress on the same shape and prompt, if an environment with it is named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.gpu.models import SuiteSetting, measured_with, subject_of
from benchmarks.gpu.rows import Row, table, why
from foveate.compression.composition import policy as policy_of
from foveate.errors import FoveateError, InvalidInput
from foveate.policies.policy import Policy
from foveate_lab.bench.measure import bench
from foveate_lab.bench.peer import PRESSES, kvpress

MODEL, TOKENS, LAYERS = "qwen2-vl-7b", 4096, 8
METHODS = ("full", "snapkv", "adakv", "knorm", "h2o")
ROUNDS, STEPS = 2, 16
SHOWN = ("method", "prefill_ratio", "peak_bytes", "kv_bytes", "decode_ms_per_token", "decode_ratio")


def rows(setting: SuiteSetting) -> Iterator[Row]:
    """Yield Foveate's rows, then kvpress's.

    Raises:
        InvalidInput: no Python with kvpress was named.
    """
    if setting.peer_python is None:
        raise InvalidInput("no Python that has kvpress: name it with --peer-python.")
    subject = subject_of(MODEL, TOKENS, setting, layers=LAYERS)
    chosen = [_policy(name, setting) for name in METHODS]
    rounds, steps = (1, 2) if setting.quick else (ROUNDS, STEPS)
    with measured_with(setting):
        for row in bench(subject, chosen, rounds=rounds, steps=steps, memory=0):
            yield {"library": "foveate", **_figures(asdict(row))}
    try:
        theirs = kvpress(subject, chosen, setting.peer_python, rounds=rounds, steps=steps)
    except FoveateError as error:  # Foveate's rows are useful alone
        yield {"library": "kvpress", "failed": why(error)}
        return
    yield from ({"library": "kvpress", **_figures(row)} for row in theirs)


def _policy(name: str, setting: SuiteSetting) -> Policy:
    if name == "full":
        return policy_of(name)
    policy = policy_of(name, budget="20%")
    return policy.but(window=4) if setting.quick and name in ("snapkv", "adakv") else policy


def _figures(row: dict[str, Any]) -> Row:
    figures = {name: row[name] for name in SHOWN}
    figures["method"] = row["method"].partition(":")[0]
    for name in ("peak", "kv"):
        size = figures.pop(f"{name}_bytes")
        figures[f"{name}_mib"] = None if size is None else size / 2**20
    return figures


def page(measured: Sequence[Row]) -> list[str]:
    """Return a table with a method's two rows side by side."""
    order = {name: i for i, name in enumerate(PRESSES)}
    columns = {
        "method": "method", "library": "library", "prefill_ratio": "prefill, to stock",
        "peak_mib": "peak, MiB", "kv_mib": "KV, MiB", "decode_ms_per_token": "ms a token",
        "decode_ratio": "to the full cache",
    }  # fmt: skip
    both = sorted(measured, key=lambda row: order.get(row.get("method", ""), -1))
    return [
        f"{MODEL}'s shape with {LAYERS} layers, bfloat16, {TOKENS:,} tokens, 20 % kept; each "
        "against its own stock prefill and its own full cache.",
        "",
        *table(both, columns),
    ]
