"""Long contexts: prompts of 16k to 128k tokens in chunks, and the work of policies alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import DynamicCache

from benchmarks import chunks
from benchmarks.gpu.models import SuiteSetting, measured_with, short, subject_of, with_other_prompt
from benchmarks.gpu.rows import Row, attempted, milliseconds, table
from benchmarks.layer_work import Heads, anew, drawn, work
from foveate.compression.composition import policy as policy_of
from foveate.policies.policy import Policy
from foveate_lab.bench.memory import peak_of
from foveate_lab.bench.subject import Subject
from foveate_lab.bench.timing import FilledCache, seconds, steps

MODEL, LAYERS = "qwen2-vl-7b", 2
CHUNK, KEEP, DECODED = 4096, 4096, 8
TOKENS = (16384, 32768, 65536, 131072)
OVER_BUDGET = f"snapkv:budget={KEEP},when=over_budget(every={CHUNK},reading=true,answering=false)"
READ = ("snapkv:budget=20%", "mixkv:budget=20%", "adakv:budget=20%", OVER_BUDGET)
ALONE = ("snapkv", "mixkv", "adakv", "h2o", "prefixkv", "csp", "david", "lookm")
HEADS = Heads(28, 4, 128)


def rows(setting: SuiteSetting) -> Iterator[Row]:
    """Yield how the policies' own work grows; then prefill and decoding, both ends first."""
    for name in ALONE:
        yield attempted({"part": "alone", "policy": name}, _alone, name, setting)
    yield from _of_model(subject_of(MODEL, 1, setting, layers=LAYERS), setting)


def _of_model(model: Subject, setting: SuiteSetting) -> Iterator[Row]:
    ends_first = (TOKENS[0], TOKENS[-1], *TOKENS[1:-1])
    for tokens in TOKENS[:1] if setting.quick else ends_first:
        prompt = with_other_prompt(model, tokens, setting)
        about = {"part": "read", "tokens": tokens}
        full = attempted(about, _stock, prompt, setting)
        yield full | {"policy": "(stock)"}
        for spec in READ:
            arguments = (prompt, _policy(spec, setting), full, setting)
            yield attempted(about | {"policy": spec}, _read, *arguments)


def _policy(spec: str, setting: SuiteSetting) -> Policy:
    if not setting.quick:
        return policy_of(spec)
    small = spec.replace(f"budget={KEEP}", "budget=24,window=4").replace(
        f"every={CHUNK}", "every=32"
    )
    return policy_of(small).but(window=4)


def _chunk(setting: SuiteSetting) -> int:
    return 32 if setting.quick else CHUNK


def _stock(subject: Subject, setting: SuiteSetting) -> dict[str, Any]:
    """Measure the stock cache: memory beyond that of the same chunks without a cache, and decoding.
    Decoding uses the full cache, preallocated.
    """
    chunk, device, caches = _chunk(setting), setting.torch_device, []
    with measured_with(setting):
        bare = peak_of(lambda: chunks.without_cache(subject, chunk), device)
        peak = peak_of(lambda: caches.append(chunks.stock(subject, chunk)), device)
        cache_bytes = _bytes(caches.pop())
        decoded = steps(subject, chunks.read(subject, policy_of("full"), chunk), DECODED)
    return {
        "bare": bare,
        "ms": 1e3 * decoded,
        "kept_mib": cache_bytes / 2**20,
        **_beyond(peak, bare),
    }


def _read(subject: Subject, policy: Policy, full: Row, setting: SuiteSetting) -> dict[str, Any]:
    """Measure a policy: after a warm-up, one prefill between two stock ones."""
    chunk, device = _chunk(setting), setting.torch_device
    caches: list[FilledCache] = []
    with measured_with(setting):
        peak = peak_of(lambda: caches.append(chunks.read(subject, policy, chunk)), device)
        decoded = steps(subject, caches[0], DECODED)
        kept = caches.pop().stats.bytes_after
        before = seconds(lambda: chunks.stock(subject, chunk), device)
        own = seconds(lambda: chunks.read(subject, policy, chunk), device)
        after = seconds(lambda: chunks.stock(subject, chunk), device)
    measured = {"ratio": 2 * own / (before + after), "ms": 1e3 * decoded, "kept_mib": kept / 2**20}
    return measured | _beyond(peak, full.get("bare"))


def _beyond(peak: int | None, bare: int | None) -> dict[str, float]:
    return {} if peak is None or bare is None else {"peak_mib": (peak - bare) / 2**20}


def _bytes(cache: DynamicCache) -> int:
    layers: Any = cache.layers
    return sum(int(layer.keys.nbytes + layer.values.nbytes) for layer in layers)


def _alone(name: str, setting: SuiteSetting) -> dict[str, Any]:
    """Return milliseconds per layer at both ends and their ratio, which should be 8 to 9."""
    ms, device = [], setting.torch_device
    for tokens in (TOKENS[0], TOKENS[-1]):
        policy = policy_of(name, budget="20%" if name != "lookm" else short(KEEP, setting) // 2)
        if setting.quick and name in ("snapkv", "mixkv", "adakv"):
            policy = policy.but(window=4)
        layer = drawn(policy, short(tokens, setting), HEADS, device, torch.bfloat16)
        with measured_with(setting):
            ms.append(milliseconds(lambda p=policy, x=layer: work(p, anew(p, x)), 3, device))  # type: ignore[misc]
    return {"first_ms": ms[0], "last_ms": ms[1], "grows": ms[1] / ms[0]}


def page(measured: Sequence[Row]) -> list[str]:
    """Return both tables."""
    read = {
        "tokens": "tokens", "policy": "policy", "ratio": "reading, to stock",
        "peak_mib": "peak, MiB", "kept_mib": "kept, MiB", "ms": "ms a token",
    }  # fmt: skip
    alone = {"policy": "policy", "first_ms": f"{TOKENS[0]:,} tokens, ms",
             "last_ms": f"{TOKENS[-1]:,} tokens, ms", "grows": "times"}  # fmt: skip
    reading = [row for row in measured if row["part"] == "read"]
    return [
        f"{MODEL}'s shape with {LAYERS} layers, bfloat16, in chunks of {CHUNK:,} tokens. Peaks are "
        "beyond those of the same chunks without any cache.",
        "",
        *table(sorted(reading, key=lambda row: row["tokens"]), read),
        "",
        "The policies' own work on one layer, its attention having been done. Tokens grow 8 times. "
        "LOOK-M keeps a fixed number: with a share, its search for the nearest kept key is of all "
        "pairs by all kept ones.",
        "",
        *table([row for row in measured if row["part"] == "alone"], alone),
    ]
