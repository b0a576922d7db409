"""Measurements of kvpress, run in its environment without foveate: JSON on stdin, rows on stdout.

Called by ``foveate_lab.bench.peer``, never imported there.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import json
import os
import sys
import time
from statistics import mean, median
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import kvpress_presses  # type: ignore[import-not-found]  # first: a missing kvpress shows at once
import torch
from memory import freed_at_once, peak_of  # type: ignore[import-not-found]
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, GenerationMixin

# Name of the cache argument; that environment has its own release of transformers.
_TAKES = inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
CACHE = "cache" if "cache" in _TAKES else "past_key_values"


def main() -> None:
    """Measure every requested press."""
    request = json.load(sys.stdin)
    torch.set_num_threads(request["threads"])
    with torch.no_grad(), freed_at_once():  # peaks first: later, glibc reuses memory that it kept
        model = load(request)
        ids = torch.tensor([request["ids"]], dtype=torch.long, device=model.device)
        run(model, ids[:, -1024:], None)  # warm-up
        memory = [memory_of(model, ids, press) for press in request["presses"]]
    with torch.no_grad():
        times = [
            timed(model, ids, press, request["rounds"], request["steps"])
            for press in request["presses"]
        ]
    rows = [
        {
            "library": "kvpress",
            **{name: press[name] for name in ("method", "budget", "press")},
            **measured,
            **spent,
        }
        for press, measured, spent in zip(request["presses"], memory, times, strict=True)
    ]
    sys.stdout.write(json.dumps(rows) + "\n")


def load(request: dict[str, Any]) -> Any:
    """Load the model, or one of its shape with random weights."""
    auto: Any = AutoModelForCausalLM
    dtype, device = getattr(torch, request["dtype"]), torch.device(request["device"])
    # kvpress requires eager attention for presses that use attention weights
    eager = any(press["press"] == "ObservedAttentionPress" for press in request["presses"])
    attention = "eager" if eager else "sdpa"
    if request["random"]:
        with torch.device(device):
            config = AutoConfig.from_pretrained(request["model"], trust_remote_code=False)
            model = auto.from_config(config, dtype=dtype, attn_implementation=attention)
    else:
        model = auto.from_pretrained(
            request["model"], dtype=dtype, attn_implementation=attention, trust_remote_code=False
        ).to(device)
    return model.eval()


def set_attention_of(model: Any, request: dict[str, Any]) -> None:
    """Switch to the attention that the press's prefill needs."""
    attention(model, "eager" if request["press"] == "ObservedAttentionPress" else "sdpa")


def memory_of(model: Any, ids: Any, request: dict[str, Any]) -> dict[str, int | None]:
    """Return the peak of a press's prefill, and the bytes stored after it."""
    caches: list[Any] = []
    show_all(model)
    set_attention_of(model, request)
    press = kvpress_presses.press_of(request, model)
    peak = peak_of(lambda: caches.append(run(model, ids, press)[1]), model.device)
    return {"peak_bytes": peak, "kv_bytes": stored_bytes(caches[0]) + hidden(model)}


def timed(
    model: Any, ids: Any, request: dict[str, Any], rounds: int, steps: int
) -> dict[str, float]:
    """Time a press's prefill against stock SDPA, then its decoding against the stock cache."""
    press, prefills, decoding = kvpress_presses.press_of(request, model), [], []
    for _ in range(rounds):
        attention(model, "sdpa")
        alone, stock = run(model, ids, None)
        plain = mean(step(model, ids, stock, steps)[1:])  # before a press hides pairs
        del stock
        set_attention_of(model, request)
        prefill_s, cache = run(model, ids, press)
        attention(model, "sdpa")
        compressed = mean(step(model, ids, cache, steps)[1:])
        prefills.append((prefill_s, prefill_s / alone))
        decoding.append((1000 * compressed, compressed / plain))
        del cache
        gc.collect()
    (seconds, prefill_ratio), (ms, decode_ratio) = (
        map(median, zip(*pairs, strict=True)) for pairs in (prefills, decoding)
    )
    return {
        "prefill_s": seconds,
        "prefill_ratio": prefill_ratio,
        "decode_ms_per_token": ms,
        "decode_ratio": decode_ratio,
    }


def attention(model: Any, name: str) -> None:
    """Switch the attention of all layers."""
    model.set_attn_implementation(name)


def run(model: Any, ids: Any, press: Any) -> tuple[float, Any]:
    """Return the seconds of a prefill, and its cache."""
    cache = DynamicCache(config=model.config)
    wait(model)
    start = time.perf_counter()
    with press(model) if press is not None else contextlib.nullcontext():
        model(ids, **{CACHE: cache}, logits_to_keep=1)
    wait(model)
    return time.perf_counter() - start, cache


def step(model: Any, ids: Any, cache: Any, steps: int) -> list[float]:
    """Return the seconds of decoding steps, at positions after the full prompt's last."""
    times = []
    for i in range(steps + 1):
        position = ids.new_tensor([[ids.shape[1] + i]])
        wait(model)
        start = time.perf_counter()
        model(ids[:, -1:], **{CACHE: cache}, position_ids=position)
        wait(model)
        times.append(time.perf_counter() - start)
    return times


def stored_bytes(cache: Any) -> int:
    """Return the bytes of keys and values."""
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


def hidden(model: Any) -> int:
    """Return the bytes of the indices of hidden pairs: per-head eviction in kvpress hides pairs."""
    lists = [getattr(module, "masked_key_indices", None) or () for module in model.modules()]
    return sum(t.nbytes for indices in lists for t in indices)


def show_all(model: Any) -> None:
    """Reset hidden pairs of the previous press; prefills with eager attention leave them hidden."""
    for module in model.modules():
        if hasattr(module, "masked_key_indices"):
            module.masked_key_indices = None


def wait(model: Any) -> None:
    """Wait until the device has finished."""
    if model.device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
