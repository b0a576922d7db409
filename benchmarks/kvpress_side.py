"""One measurement of kvpress, inside kvpress's own environment (made by ``kvpress_env.sh``).

    python kvpress_side.py --model DIR --press snapkv --keep 0.2 --tokens 1024 --text ids.json

Prefills a prompt in one forward pass under a press, then feeds the 64 tokens that follow it, one
at a time, to the compressed cache, as kvpress's own pipeline does it: positions go on from the
length of the whole prompt. Prints one line of JSON; times are medians after a warm-up.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import resource
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from kvpress import BasePress, KnormPress, SnapKVPress
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

FOLLOWING = 64


def main() -> None:
    """Reads the arguments, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="a from_pretrained folder")
    parser.add_argument("--press", choices=("snapkv", "knorm", "full"), required=True)
    parser.add_argument("--keep", type=float, default=0.2, help="fraction of the pairs kept")
    parser.add_argument("--tokens", type=int, default=1024, help="the last N tokens of the prompt")
    parser.add_argument(
        "--text", type=Path, required=True, help='JSON: {"prompt": [ids], "next": [64 ids]}'
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--window", type=int, default=64, help="SnapKV's observation window")
    parser.add_argument("--kernel", type=int, default=5, help="SnapKV's pooling kernel")
    args = parser.parse_args()
    if not 0 < args.keep <= 1:
        parser.error(f"--keep {args.keep} is not in (0, 1]")
    if args.repeats < 1:
        parser.error(f"--repeats {args.repeats} measures nothing")
    text = json.loads(args.text.read_text())
    if not 1 <= args.tokens <= len(text["prompt"]):
        parser.error(f"--tokens {args.tokens}: the prompt has {len(text['prompt'])} tokens")
    if len(text["next"]) != FOLLOWING:
        parser.error(f"{len(text['next'])} tokens follow the prompt, not {FOLLOWING}")

    torch.set_num_threads(args.threads)
    model = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=torch.float32, local_files_only=True
    )
    touched = sum(float(weight.sum()) for weight in model.parameters())  # mapped: make it resident
    if not math.isfinite(touched):
        parser.error(f"--model {args.model} has weights that are not finite")
    memory = {"rss_after_load_bytes": rss(), "peak_rss_at_load_bytes": peak_rss()}
    prompt = torch.tensor([text["prompt"][-args.tokens :]])
    following = torch.tensor([text["next"]])

    press = press_for(args)
    run(model, press, prompt, following[:, :4])  # warm-up
    runs = [run(model, press, prompt, following) for _ in range(args.repeats)]
    steps = [step for one in runs for step in one["steps_s"]]
    result = {
        "press": args.press,
        "compression_ratio": press.compression_ratio if press else 0.0,
        "prompt_tokens": prompt.shape[1],
        "kept_tokens": runs[-1]["kept_tokens"],
        "cache_bytes": runs[-1]["cache_bytes"],
        "prefill_s": statistics.median(one["prefill_s"] for one in runs),
        "decode_ms_per_token": 1000 * statistics.median(steps),
        "nll_next_64": runs[-1]["nll"],
        "peak_rss_bytes": peak_rss(),
        **memory,
        "repeats": args.repeats,
        "threads": torch.get_num_threads(),
        "attention": model.config._attn_implementation,
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "transformers", "kvpress")},
        },
    }
    if args.press == "snapkv":
        result |= {"window": args.window, "kernel": args.kernel}
    json.dump(result, sys.stdout)
    sys.stdout.write("\n")


def press_for(args: argparse.Namespace) -> BasePress | None:
    """The press that the arguments name; None leaves the cache as it is."""
    ratio = 1 - args.keep
    if args.press == "snapkv":
        return SnapKVPress(ratio, window_size=args.window, kernel_size=args.kernel)
    return KnormPress(ratio) if args.press == "knorm" else None


@torch.inference_mode()
def run(
    model: PreTrainedModel, press: BasePress | None, prompt: torch.Tensor, following: torch.Tensor
) -> dict[str, Any]:
    """Prefills once, then teacher-forces what follows; the prefill predicts its first token."""
    cache = DynamicCache()
    start = time.perf_counter()
    with press(model) if press else contextlib.nullcontext():
        logits = model(prompt, past_key_values=cache, logits_to_keep=1).logits
    prefill_s = time.perf_counter() - start
    kept = {layer.keys.shape[2] for layer in cache.layers}
    cache_bytes = held_bytes(cache)

    losses, steps = [], []
    for i, token in enumerate(following[0]):
        losses.append(torch.nn.functional.cross_entropy(logits[0, -1:].float(), token[None]).item())
        if i + 1 == following.shape[1]:
            break
        # The press is gone and the cache is shorter than the text: say where the token stands.
        position = torch.tensor([[prompt.shape[1] + i]])
        start = time.perf_counter()
        logits = model(token.view(1, 1), past_key_values=cache, position_ids=position).logits
        steps.append(time.perf_counter() - start)
    return {
        "prefill_s": prefill_s,
        "steps_s": steps,
        "kept_tokens": min(kept) if len(kept) == 1 else sorted(kept),
        "cache_bytes": cache_bytes,
        "nll": statistics.fmean(losses),
    }


def held_bytes(cache: DynamicCache) -> int:
    """Bytes of the storages that the cache keeps alive (a slice keeps what it is a slice of)."""
    tensors = [t for layer in cache.layers for t in vars(layer).values() if torch.is_tensor(t)]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def rss() -> int:
    """Resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def peak_rss() -> int:
    """Peak resident memory of this process in bytes.

    Linux carries ``ru_maxrss`` over from the process that started this one, so that a large parent
    would show here; VmHWM begins anew.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
