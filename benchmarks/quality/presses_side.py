"""Answers of kvpress, run in its environment without foveate: JSON on stdin, a row per line.

Called by ``presses.py``. Every press reads the context alone, then the question follows, as in
kvpress's pipeline.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import kvpress
import torch
from transformers import AutoModelForCausalLM, DynamicCache


def main() -> None:
    """Answer the request's prompts under each press."""
    request = json.load(sys.stdin)
    torch.set_num_threads(1)
    model: Any = AutoModelForCausalLM.from_pretrained(request["model"], dtype=torch.float32)
    model.eval()
    with torch.no_grad():
        for row in _rows(model, request):
            sys.stdout.write(json.dumps(row) + "\n")


def _rows(model: Any, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    context, question = (torch.tensor([request[name]]) for name in ("context", "question"))
    stock = DynamicCache(config=model.config)
    model(context, past_key_values=stock, logits_to_keep=1)
    for name, kept in request["presses"].items():
        for module in model.modules():  # per-head presses hide pairs instead of dropping them
            if hasattr(module, "masked_key_indices"):
                module.masked_key_indices = None
        cache = DynamicCache(config=model.config)
        # the half keeps int(n * (1 - ratio)) from rounding below the count
        press = _press(name, 1 - (kept + 0.5) / context.shape[1])
        with press(model):
            model(context, past_key_values=cache, logits_to_keep=1)
        positions = _positions(model, stock, cache)
        yield {"press": name, "kept": positions, "tokens": _greedy(model, cache, question, request)}


def _press(name: str, ratio: float) -> Any:
    outer, _, inner = name.partition("(")
    if inner:
        return getattr(kvpress, outer)(getattr(kvpress, inner[:-1])(ratio))
    return getattr(kvpress, outer)(ratio)


def _positions(model: Any, stock: Any, cache: Any) -> list[list[list[int]]]:
    """Return the positions that each layer and KV head kept, found by their keys."""
    found = []
    for layer, (all_pairs, kept) in enumerate(zip(stock.layers, cache.layers, strict=True)):
        hidden = getattr(model.model.layers[layer].self_attn, "masked_key_indices", None)
        heads = []
        for head, (theirs, mine) in enumerate(zip(all_pairs.keys[0], kept.keys[0], strict=True)):
            index = {key.numpy().tobytes(): position for position, key in enumerate(theirs)}
            positions = {index[key.numpy().tobytes()] for key in mine}
            if hidden is not None:
                _, of_head, dropped = hidden
                positions -= {*dropped[of_head == head].tolist()}
            heads.append(sorted(positions))
        found.append(heads)
    return found


def _greedy(model: Any, cache: Any, question: Any, request: dict[str, Any]) -> list[int]:
    fed, position, answer = question, len(request["context"]), list[int]()
    while len(answer) < request["longest"] and (not answer or answer[-1] not in request["stop"]):
        places = torch.arange(position, position + fed.shape[1])[None]
        logits = model(fed, past_key_values=cache, position_ids=places).logits[0, -1]
        position += fed.shape[1]
        answer.append(int(logits.argmax()))
        fed = torch.tensor([answer[-1:]])
    return answer


if __name__ == "__main__":
    main()
