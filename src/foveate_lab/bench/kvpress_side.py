"""Runs in the environment of kvpress, which has no foveate: JSON on stdin, rows of figures out.

Called by ``foveate_lab.bench.peer``, never imported.
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

# the name of the cache's argument: that environment has a release of transformers of its own
_TAKES = inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
CACHE = "cache" if "cache" in _TAKES else "past_key_values"


def main() -> None:
    """Measures every press that is asked for."""
    request = json.load(sys.stdin)
    torch.set_num_threads(request["threads"])
    with torch.no_grad(), freed_at_once():  # peaks first: later, glibc would reuse what it holds
        model = load(request)
        ids = torch.tensor([request["ids"]], dtype=torch.long, device=model.device)
        run(model, ids[:, -1024:], None)  # warm-up
        memory = [held_by(model, ids, one) for one in request["presses"]]
    with torch.no_grad():
        times = [
            timed(model, ids, one, request["rounds"], request["steps"])
            for one in request["presses"]
        ]
    rows = [
        {
            "library": "kvpress",
            **{name: one[name] for name in ("method", "budget", "press")},
            **measured,
            **spent,
        }
        for one, measured, spent in zip(request["presses"], memory, times, strict=True)
    ]
    sys.stdout.write(json.dumps(rows) + "\n")


def load(request: dict[str, Any]) -> Any:
    """The model, or one of its shape with random weights."""
    auto: Any = AutoModelForCausalLM
    dtype, device = getattr(torch, request["dtype"]), torch.device(request["device"])
    # the presses that read attention weights need the eager attention: kvpress asks for it
    eager = any(one["press"] == "ObservedAttentionPress" for one in request["presses"])
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


def reads(model: Any, one: dict[str, Any]) -> None:
    """Switches to the attention that the press's prefill needs."""
    attention(model, "eager" if one["press"] == "ObservedAttentionPress" else "sdpa")


def held_by(model: Any, ids: Any, one: dict[str, Any]) -> dict[str, int | None]:
    """The peak of a press's prefill, and what it holds afterwards."""
    caches: list[Any] = []
    show_all(model)
    reads(model, one)
    press = kvpress_presses.press_of(one, model)
    peak = peak_of(lambda: caches.append(run(model, ids, press)[1]), model.device)
    return {"peak_bytes": peak, "kv_bytes": held(caches[0]) + hidden(model)}


def timed(model: Any, ids: Any, one: dict[str, Any], rounds: int, steps: int) -> dict[str, float]:
    """A press between stock prefills with SDPA, then decoding in turns with the stock cache."""
    press, prefills, decoding = kvpress_presses.press_of(one, model), [], []
    for _ in range(rounds):
        attention(model, "sdpa")
        alone, stock = run(model, ids, None)
        plain = mean(step(model, ids, stock, steps)[1:])  # before a press hides pairs
        del stock
        reads(model, one)
        whole, cache = run(model, ids, press)
        attention(model, "sdpa")
        compressed = mean(step(model, ids, cache, steps)[1:])
        prefills.append((whole, whole / alone))
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
    """Switches the attention of all layers."""
    model.set_attn_implementation(name)


def run(model: Any, ids: Any, press: Any) -> tuple[float, Any]:
    """Seconds of a prefill, and its cache."""
    cache = DynamicCache(config=model.config)
    wait(model)
    start = time.perf_counter()
    with press(model) if press is not None else contextlib.nullcontext():
        model(ids, **{CACHE: cache}, logits_to_keep=1)
    wait(model)
    return time.perf_counter() - start, cache


def step(model: Any, ids: Any, cache: Any, steps: int) -> list[float]:
    """Seconds of decoding steps. Positions go on after the prompt, however much is kept of it."""
    times = []
    for i in range(steps + 1):
        place = ids.new_tensor([[ids.shape[1] + i]])
        wait(model)
        start = time.perf_counter()
        model(ids[:, -1:], **{CACHE: cache}, position_ids=place)
        wait(model)
        times.append(time.perf_counter() - start)
    return times


def held(cache: Any) -> int:
    """Bytes of keys and values."""
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


def hidden(model: Any) -> int:
    """Evicting from single heads, kvpress hides pairs: the indices of what it hides."""
    lists = [getattr(module, "masked_key_indices", None) or () for module in model.modules()]
    return sum(t.nbytes for each in lists for t in each)


def show_all(model: Any) -> None:
    """Forgets what the press before has hidden: prefills with eager attention leave it hidden."""
    for module in model.modules():
        if hasattr(module, "masked_key_indices"):
            module.masked_key_indices = None


def wait(model: Any) -> None:
    """Until the device has done what it was given."""
    if model.device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
