"""Records what the presses of NVIDIA kvpress 0.5.5 score and keep, for ``test_kvpress.py``.

kvpress needs another transformers than foveate does, so this runs in an environment of its own:

    bash benchmarks/speed/kvpress_env.sh .venv-kvpress
    .venv-kvpress/bin/python tests/golden/record_kvpress.py

A small Llama with drawn weights reads one prompt under each press, as a user of kvpress would have
it. ``kvpress_inputs`` holds what all of them were given: of each layer the hidden states, queries,
keys (before and after the rotation) and values, the attention, and the output projection; those
called ``_unrotated`` were given ``kvpress_inputs_unrotated``, where positions turn nothing. The
other files hold what came out: ``scores`` as the press ranked them, and what it ``kept``, [layers,
heads, tokens]; and what that press alone was given (a sketch, head scores, filters, a replay).
``kvpress_answers`` holds a model's weights and the logits of its answers,
``kvpress_names.json`` what the package exports.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import kvpress
import torch
from kvpress_answers import ASKED, answers
from kvpress_model import (
    HEADS,
    LAYERS,
    TOKENS,
    Pass,
    drawn_model,
    drawn_prompt,
    eager,
    inputs,
    together,
    unrotated,
    watched,
)
from kvpress_presses import ANSWERING, FIRST, PRESSES, prepared
from safetensors.torch import save_file
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM

DATA = Path(__file__).with_name("data")


@contextmanager
def noted(owner: Any, method: str) -> Iterator[list[Tensor]]:
    """What a function returned, as it was then."""
    returned: list[Tensor] = []
    called = getattr(owner, method, None)

    def noting(*of: Any, **named: Any) -> Any:
        result = called(*of, **named)
        returned.append(result.clone())
        return result

    if called is not None:
        setattr(owner, method, noting)
    yield returned
    if called is not None:
        setattr(owner, method, called)


def noted_reconstruction(press: Any, out: Pass) -> None:
    """KVzip's scores over all layers, before they are forgotten."""
    finish = press.compress_post

    def noting(model: LlamaForCausalLM) -> None:
        finish(model)
        out["scores"] = press.score_val[:, 0].clone()

    press.compress_post = noting


def read(model: LlamaForCausalLM, cache: DynamicCache, first: int) -> None:
    """The first tokens of the prompt at once, the others one by one, as if they were the answer."""
    ids, places = drawn_prompt(), torch.arange(TOKENS)[None]
    model.model(input_ids=ids[:, :first], past_key_values=cache)
    for i in range(first, TOKENS):
        some = slice(i, i + 1)
        model.model(
            input_ids=ids[:, some],
            past_key_values=cache,
            position_ids=places[:, some],
            cache_position=places[0, some],
        )


def token_by_token(seen: list[Pass], model: LlamaForCausalLM, cache: DynamicCache) -> Pass:
    """Keys and values as they came, and which are left in the end."""
    passes = [together(seen[i : i + LAYERS], "k", "v") for i in range(0, len(seen), LAYERS)]
    k, v = (torch.cat([one[name] for one in passes], 2) for name in "kv")
    return {"k": k, "v": v, "kept": kept(model, cache, v)}


def kept(model: LlamaForCausalLM, cache: DynamicCache, values: Tensor) -> Tensor:
    """[layers, heads, tokens]: what is in the cache, and is not hidden from the attention."""
    found = torch.zeros(values.shape[:3], dtype=torch.bool)
    for i, layer in enumerate(model.model.layers):
        for head in range(HEADS):
            rows = cache.layers[i].values[0, head]
            found[i, head] = (values[i, head][:, None] == rows).all(-1).any(-1)
        if layer.self_attn.masked_key_indices is not None:
            _, heads, places = layer.self_attn.masked_key_indices
            found[i, heads, places] = False
    return found


def recorded(name: str, model: LlamaForCausalLM) -> Pass:
    """What one press makes of the prompt."""
    press, cache = PRESSES[name].made(), DynamicCache()
    out = prepared(name, press, model)
    with ExitStack() as stack:
        if name == "observed_attention":
            stack.enter_context(eager(model))
        if name.endswith("unrotated"):
            stack.enter_context(unrotated(model))
        scorer = press if hasattr(press, "score") else getattr(press, "press", None)
        scores = stack.enter_context(noted(scorer, "score"))
        torch.manual_seed(3)
        sketches = stack.enter_context(noted(torch, "randn"))
        seen = stack.enter_context(watched(model))
        if name.startswith("kvzip"):
            noted_reconstruction(press, out)
        with torch.no_grad(), press(model):
            read(model, cache, FIRST if name in ANSWERING else TOKENS)
    if name in ANSWERING:
        return token_by_token(seen, model, cache)
    prompt, later = seen[:LAYERS], seen[LAYERS:]
    if len(scores) == LAYERS:  # those that score in parts keep what says all
        out["scores"] = torch.cat(scores)
    if sketches:
        out["sketch"] = torch.cat(sketches)
    if name == "think":
        out["channels"] = torch.stack([layer.keys[0].ne(0).any(1) for layer in cache.layers])
    for i in range(0, 0 if name.endswith("layerwise") else len(later), LAYERS):
        replay = together(later[i : i + LAYERS], "hidden", "q", "k", "v")
        replay["norm"] = replay.pop("hidden").norm(dim=-1)
        out |= {f"replay{i // LAYERS}_{part}": t for part, t in replay.items()}
    out["kept"] = kept(model, cache, together(prompt, "v")["v"])
    return out


def save(name: str, tensors: Pass, **about: Any) -> None:
    origin = {"repo": "NVIDIA/kvpress", "version": version("kvpress")}
    origin |= {
        key: value if isinstance(value, str) else json.dumps(value) for key, value in about.items()
    }
    save_file(
        {k: t.detach().contiguous() for k, t in tensors.items()},
        DATA / f"kvpress_{name}.safetensors",
        origin,
    )


def main() -> None:
    DATA.mkdir(exist_ok=True)
    names = {"version": version("kvpress"), "exports": sorted(kvpress.__all__)}
    (DATA / "kvpress_names.json").write_text(json.dumps(names, indent=1) + "\n")
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        model = drawn_model(folder)
        about = {"function": "transformers.LlamaAttention", "args": {"tokens": TOKENS}}
        save("inputs", inputs(model), **about)
        with unrotated(model), watched(model) as seen:
            model.model(input_ids=drawn_prompt())
        save("inputs_unrotated", together(seen, "q", "k", "v"), **about)
        for name, press in PRESSES.items():
            function = f"kvpress.{press.name}"
            save(name, recorded(name, model), function=function, args=press.said())
        said = {name: PRESSES[name].said() for name in ASKED}
        save("answers", answers(model), function="kvpress.KVPressTextGenerationPipeline", args=said)


if __name__ == "__main__":
    main()
