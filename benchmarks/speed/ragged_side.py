"""One side of ``ragged.py``: Foveate in its environment, or kvpress in its own.

    python ragged_side.py --library foveate --what snapkv --keep 0.2 --model DIR --text ids.json

Prefills a prompt in one forward pass, then feeds the 64 tokens that follow it, one at a time, to
the compressed cache; positions continue from the full prompt's length (as in kvpress's own
pipeline). Prints one line of JSON; times are medians after a warm-up.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

BENCH = Path(__file__).parents[2] / "src" / "foveate_lab" / "bench"
sys.path.insert(0, str(BENCH))  # kvpress's environment has no foveate_lab
from memory import in_use  # type: ignore[import-not-found]  # noqa: E402

WARM_UP = 2048  # tokens at most

Around = Callable[[PreTrainedModel], contextlib.AbstractContextManager[Any]]


class Library(NamedTuple):
    """Adapter of a library.

    ``prefill``, ``whole``: contexts around the prefill, and around all of a run. ``cache``: name of
    the cache argument in its release of transformers. ``beside``: bytes stored in the model beside
    the cache.
    """

    prefill: Around
    run: Around
    cache: str
    beside: Callable[[PreTrainedModel], int]


def main() -> None:
    """Parse the arguments, measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="a from_pretrained folder")
    parser.add_argument("--library", choices=("foveate", "kvpress"), required=True)
    parser.add_argument("--what", required=True, help="a policy without its budget, or a press")
    parser.add_argument("--keep", type=float, required=True, help="fraction of the pairs kept")
    parser.add_argument(
        "--text", type=Path, required=True, help='JSON: {"prompt": [ids], "next": [ids]}'
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    disable_progress_bar()  # type: ignore[no-untyped-call]
    model = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=torch.float32, local_files_only=True, trust_remote_code=False
    )
    for weight in model.parameters():
        weight.detach().sum()  # the file is memory-mapped: reading makes it resident
    side = foveate_side if args.library == "foveate" else kvpress_side
    text = json.loads(args.text.read_text())
    prompt, following = (torch.tensor([text[name]]) for name in ("prompt", "next"))
    library = side(args.what, args.keep)
    run(model, library, prompt[:, -WARM_UP:], following[:, :4])
    runs = [run(model, library, prompt, following) for _ in range(args.repeats)]
    json.dump(figures(args, model, runs), sys.stdout)
    sys.stdout.write("\n")


def figures(
    args: argparse.Namespace, model: PreTrainedModel, runs: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the figures of all runs, with versions and settings."""
    steps = [step for result in runs for step in result["steps_s"]]
    names = ("torch", "transformers", args.library)
    return {
        "library": args.library,
        "what": args.what,
        **{name: runs[-1][name] for name in ("prompt_tokens", "kept_tokens", "cache_bytes")},
        "rss_held_bytes": statistics.median(result["rss_held_bytes"] for result in runs),
        "prefill_s": statistics.median(result["prefill_s"] for result in runs),
        "decode_ms_per_token": 1000 * statistics.median(steps),
        "nll_next_64": runs[-1]["nll"],
        "load_average": os.getloadavg()[0],  # well over --threads: others were computing too
        "repeats": args.repeats,
        "threads": torch.get_num_threads(),
        "attention": model.config._attn_implementation,
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in names},
        },
    }


def foveate_side(what: str, keep: float) -> Library:
    """Return a policy as context around prefill and decoding."""
    import foveate
    from foveate.hf.model.internals import CACHE

    policy = foveate.full() if what == "full" else foveate.policy(what, budget=keep)
    return Library(nothing, lambda model: foveate.compress(model, policy), CACHE, lambda model: 0)


def kvpress_side(what: str, keep: float) -> Library:
    """Return a press as context around the prefill, as in ``foveate bench --against kvpress``.

    Without a press, kvpress is the stock cache.
    """
    from kvpress_presses import press_of  # type: ignore[import-not-found]
    from kvpress_side import CACHE, hidden  # type: ignore[import-not-found]

    request = {"press": what if what != "full" else None, "keep": keep}
    return Library(
        lambda model: (press_of(request, model) or nothing)(model), nothing, CACHE, hidden
    )


def nothing(model: PreTrainedModel) -> contextlib.AbstractContextManager[Any]:
    """Return an empty context."""
    return contextlib.nullcontext()


@torch.inference_mode()
def run(
    model: PreTrainedModel, library: Library, prompt: torch.Tensor, following: torch.Tensor
) -> dict[str, Any]:
    """Prefill once, then teacher-force the following tokens; the prefill predicts the first one."""
    with library.run(model):
        cache = DynamicCache(config=model.config)
        before = in_use()
        start = time.perf_counter()
        with library.prefill(model):
            logits = model(prompt, **{library.cache: cache}, logits_to_keep=1).logits
        prefill_s = time.perf_counter() - start
        kept = {layer.keys.shape[2] for layer in layers_of(cache)}
        found = {
            "prompt_tokens": prompt.shape[1],
            "kept_tokens": min(kept) if len(kept) == 1 else sorted(kept),
            "cache_bytes": held_bytes(cache) + library.beside(model),
            "rss_held_bytes": in_use() - before,
            "prefill_s": prefill_s,
        }
        return {**found, **forced(model, library, cache, logits, prompt.shape[1], following)}


def forced(
    model: PreTrainedModel,
    library: Library,
    cache: DynamicCache,
    logits: torch.Tensor,
    start_at: int,
    following: torch.Tensor,
) -> dict[str, Any]:
    """Return the loss on the following tokens, and the seconds of each step."""
    losses, steps = [], []
    for i, token in enumerate(following[0]):
        losses.append(torch.nn.functional.cross_entropy(logits[0, -1:].float(), token[None]).item())
        if i + 1 == following.shape[1]:
            break
        # Under kvpress the cache is shorter than the text, so positions must be passed.
        position = torch.tensor([[start_at + i]])
        start = time.perf_counter()
        logits = model(token.view(1, 1), **{library.cache: cache}, position_ids=position).logits
        steps.append(time.perf_counter() - start)
    return {"steps_s": steps, "nll": statistics.fmean(losses)}


def layers_of(cache: DynamicCache) -> list[Any]:
    """Return the cache's layers: Foveate's in one environment, stock ones in the other."""
    return list(cache.layers)


def held_bytes(cache: DynamicCache) -> int:
    """Return the bytes of the storages that the cache keeps alive; a slice keeps all of its
    storage.
    """
    holders = [getattr(layer, "held", layer) for layer in layers_of(cache)]
    tensors = [t for holder in holders for t in tensors_in(holder)]
    return sum(
        {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values()
    )


def tensors_in(thing: Any) -> list[torch.Tensor]:
    """Return every tensor in an object, recursively."""
    if torch.is_tensor(thing):
        return [thing]
    parts = thing if isinstance(thing, (list, tuple)) else getattr(thing, "__dict__", {}).values()
    return [tensor for part in parts for tensor in tensors_in(part)]


if __name__ == "__main__":
    main()
