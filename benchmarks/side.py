"""One side of a comparison: foveate in its environment, or kvpress in its own.

    python side.py --library foveate --model DIR --method snapkv --keep 0.2 --text ids.json

Prefills a prompt in one forward pass, then feeds the 64 tokens that follow it, one at a time, to
the compressed cache; positions go on from the length of the whole prompt (kvpress's own pipeline
does the same). Prints one line of JSON; times are medians after a warm-up.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import inspect
import json
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import AutoModelForCausalLM, DynamicCache, GenerationMixin, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

# the name of the cache's argument: each environment has a release of transformers of its own
_TAKES = inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
CACHE = "cache" if "cache" in _TAKES else "past_key_values"

FOLLOWING = 64
WARM_UP = 2048  # tokens at most
WINDOW, KERNEL = 64, 5  # of SnapKV and AdaKV


def main() -> None:
    """Reads the arguments, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="a from_pretrained folder")
    parser.add_argument("--library", choices=("foveate", "kvpress"), required=True)
    parser.add_argument("--method", choices=("snapkv", "knorm", "adakv", "full"), required=True)
    parser.add_argument("--keep", type=float, default=0.2, help="fraction of the pairs kept")
    parser.add_argument("--tokens", type=int, default=1024, help="the last N tokens of the prompt")
    parser.add_argument(
        "--text", type=Path, required=True, help='JSON: {"prompt": [ids], "next": [64 ids]}'
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--window", type=int, default=WINDOW, help="SnapKV's observation window")
    parser.add_argument("--kernel", type=int, default=KERNEL, help="SnapKV's pooling kernel")
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
    if args.method in ("snapkv", "adakv") and args.tokens <= args.window:
        parser.error(f"--tokens {args.tokens}: at least one more than the window of {args.window}")

    torch.set_num_threads(args.threads)
    disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=torch.float32, local_files_only=True, trust_remote_code=False
    )
    for weight in model.parameters():
        weight.detach().sum()  # the file is mapped: reading makes it resident
    memory = {"rss_after_load_bytes": rss(), "peak_rss_at_load_bytes": peak_rss()}
    prompt = torch.tensor([text["prompt"][-args.tokens :]])
    following = torch.tensor([text["next"]])

    library = foveate_side(args) if args.library == "foveate" else kvpress_side(args)
    run(model, library, prompt[:, -WARM_UP:], following[:, :4])
    runs = [run(model, library, prompt, following) for _ in range(args.repeats)]
    steps = [step for one in runs for step in one["steps_s"]]
    result = {
        "library": args.library,
        "method": args.method,
        "prompt_tokens": prompt.shape[1],
        "kept_tokens": runs[-1]["kept_tokens"],
        "cache_bytes": runs[-1]["cache_bytes"],
        "rss_held_bytes": statistics.median(one["rss_held_bytes"] for one in runs),
        "prefill_s": statistics.median(one["prefill_s"] for one in runs),
        "decode_ms_per_token": 1000 * statistics.median(steps),
        "fastest": {
            "prefill_s": min(one["prefill_s"] for one in runs),
            "decode_ms_per_token": 1000 * min(steps),
        },
        "load_average": os.getloadavg()[0],  # well over --threads: others were computing too
        "nll_next_64": runs[-1]["nll"],
        "peak_rss_bytes": peak_rss(),
        **memory,
        "repeats": args.repeats,
        "threads": torch.get_num_threads(),
        "attention": model.config._attn_implementation,
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "transformers", args.library)},
        },
    }
    if args.method in ("snapkv", "adakv"):
        result |= {"window": args.window, "kernel": args.kernel}
    json.dump(result, sys.stdout)
    sys.stdout.write("\n")


Around = Callable[[PreTrainedModel], contextlib.AbstractContextManager[Any]]


class Library(NamedTuple):
    """Where a library wants to be: around the prefill alone, or around all of a run."""

    prefill: Around
    whole: Around


def nothing(model: PreTrainedModel) -> contextlib.AbstractContextManager[Any]:
    """A block that does nothing."""
    return contextlib.nullcontext()


def kvpress_side(args: argparse.Namespace) -> Library:
    """A press for the prefill; kvpress without a press is the stock cache."""
    from kvpress import AdaKVPress, KnormPress, SnapKVPress

    ratio = 1 - args.keep
    if args.method in ("snapkv", "adakv"):
        press = SnapKVPress(ratio, window_size=args.window, kernel_size=args.kernel)
        return Library(press if args.method == "snapkv" else AdaKVPress(press), nothing)
    return Library(KnormPress(ratio) if args.method == "knorm" else nothing, nothing)


def foveate_side(args: argparse.Namespace) -> Library:
    """The same method as a policy, around prefill and decoding."""
    import foveate

    policy = policies(args.keep, args.window, args.kernel)[args.method]
    return Library(nothing, lambda model: foveate.compress(model, policy))


def policies(keep: float, window: int = WINDOW, kernel: int = KERNEL) -> dict[str, Any]:
    """The methods as Foveate's policies; kvpress's environment has no Foveate."""
    import foveate

    return {
        "full": foveate.full(),
        "knorm": foveate.knorm(budget=keep),
        "snapkv": foveate.snapkv(budget=keep, window=window, kernel=kernel),
        "adakv": foveate.adakv(budget=keep, window=window, kernel=kernel, pool="avg", floor=0.2),
    }


@torch.inference_mode()
def run(
    model: PreTrainedModel, library: Library, prompt: torch.Tensor, following: torch.Tensor
) -> dict[str, Any]:
    """Prefills once, then teacher-forces what follows; the prefill predicts its first token."""
    with library.whole(model):
        return _run(model, library, prompt, following)


def _run(
    model: PreTrainedModel, library: Library, prompt: torch.Tensor, following: torch.Tensor
) -> dict[str, Any]:
    cache = DynamicCache(config=model.config)
    before = rss_without_garbage()
    start = time.perf_counter()
    with library.prefill(model):
        logits = model(prompt, **{CACHE: cache}, logits_to_keep=1).logits
    prefill_s = time.perf_counter() - start
    kept = {layer.keys.shape[2] for layer in cache.layers}
    cache_bytes = held_bytes(cache) + masked_bytes(model)
    rss_held = rss_without_garbage() - before

    losses, steps = [], []
    for i, token in enumerate(following[0]):
        losses.append(torch.nn.functional.cross_entropy(logits[0, -1:].float(), token[None]).item())
        if i + 1 == following.shape[1]:
            break
        # Under kvpress the cache is shorter than the text: say where the token stands.
        position = torch.tensor([[prompt.shape[1] + i]])
        start = time.perf_counter()
        logits = model(token.view(1, 1), **{CACHE: cache}, position_ids=position).logits
        steps.append(time.perf_counter() - start)
    return {
        "prefill_s": prefill_s,
        "steps_s": steps,
        "kept_tokens": min(kept) if len(kept) == 1 else sorted(kept),
        "cache_bytes": cache_bytes,
        "rss_held_bytes": rss_held,
        "nll": statistics.fmean(losses),
    }


def held_bytes(cache: DynamicCache) -> int:
    """Bytes of the storages that the cache keeps alive (a slice keeps what it is a slice of)."""
    holders = [getattr(layer, "_pairs", layer) for layer in cache.layers]
    tensors = [t for holder in holders for t in tensors_in(holder)]
    return sum(
        {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values()
    )


def masked_bytes(model: PreTrainedModel) -> int:
    """Kvpress evicts from single heads by hiding pairs: the indices of what it hides."""
    lists = [getattr(module, "masked_key_indices", None) or () for module in model.modules()]
    return sum(t.nbytes for each in lists for t in each)


def tensors_in(thing: Any) -> list[torch.Tensor]:
    """Every tensor that an object holds, however deep."""
    if torch.is_tensor(thing):
        return [thing]
    parts = thing if isinstance(thing, (list, tuple)) else getattr(thing, "__dict__", {}).values()
    return [tensor for part in parts for tensor in tensors_in(part)]


def rss_without_garbage() -> int:
    """Resident memory after what is free was given back to the system."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return rss()


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
