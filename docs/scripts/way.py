"""Traced calls of one layer through the code, for docs/design.md and its test.

The layer is the middle one of five of a Llama with random weights, under snapkv, in float32 on a
CPU.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

import foveate

SOURCE = os.path.dirname(foveate.__file__) + os.sep
SPEC = "snapkv:budget=20%"
TOKENS, LAYERS = 300, 5
DEEPEST = 11  # deepest level that is drawn
WIDTH = 118


class Call(NamedTuple):
    """A call of a function of Foveate; ``depth`` counts its callers in Foveate."""

    depth: int
    code: CodeType

    @property
    def file(self) -> str:
        return self.code.co_filename.removeprefix(SOURCE)

    @property
    def summary(self) -> str:
        """First sentence of the function's docstring."""
        text = self.code.co_consts[0] if self.code.co_consts else None
        return " ".join(text.split()).split(". ")[0].rstrip(".:") if isinstance(text, str) else ""


class Way(NamedTuple):
    """Calls of a forward pass, and their number before each layer of the model began."""

    calls: list[Call]
    begins: list[int]

    def layer(self, index: int) -> list[Call]:
        """Return the calls of one layer; the last layer's extend to the end of the pass."""
        return self.calls[slice(*[*self.begins, None][index : index + 2])]


class Figures(NamedTuple):
    """Number of calls, of their files, of changes of file, and of changes back to a seen file."""

    calls: int
    files: int
    hops: int
    back: int


def figures(calls: list[Call]) -> Figures:
    """Count calls, their files, and changes between these."""
    files = [call.file for call in calls]
    hops = [after for before, after in pairwise(files) if after != before]
    seen, back = set(files[:1]), 0
    for file in hops:
        back += file in seen
        seen.add(file)
    return Figures(len(files), len(set(files)), len(hops), back)


def llama() -> PreTrainedModel:
    """Build the model to trace."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=100,
    )
    return LlamaForCausalLM(config).eval()


@contextmanager
def noting(calls: list[Call]) -> Iterator[None]:
    """Record every call of a function of Foveate."""

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(SOURCE):
            calls.append(Call(_depth(frame), frame.f_code))

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def _depth(frame: FrameType) -> int:
    depth, caller = 0, frame.f_back
    while caller is not None:
        depth += caller.f_code.co_filename.startswith(SOURCE)
        caller = caller.f_back
    return depth


def traced(model: PreTrainedModel, read: Callable[[], object]) -> Way:
    """Trace the forward pass that ``read`` runs through a model."""
    way = Way([], [])
    hooks = [
        layer.register_forward_pre_hook(lambda *_: way.begins.append(len(way.calls)))
        for layer in model.model.layers
    ]
    with noting(way.calls):
        read()
    for hook in hooks:
        hook.remove()
    return way


@cache
def ways() -> dict[str, Way]:
    """Trace a prefill and a decoding step, after a warm-up that fills caches."""
    model, ids, found = llama(), torch.randint(0, 100, (1, TOKENS)), {}
    with torch.no_grad(), foveate.compress(model, SPEC):
        model.generate(ids, max_new_tokens=3, do_sample=False)
    with torch.no_grad(), foveate.compress(model, SPEC) as session:
        found["prefill"] = traced(model, lambda: session.prefill(input_ids=ids))
        cache, token = session.cache, torch.tensor([[5]])

        def step() -> object:
            return model(input_ids=token, past_key_values=cache, use_cache=True)

        step()
        found["decoding step"] = traced(model, step)
    return found


def drawing() -> str:
    """Return both traces as the docs show them."""
    parts = []
    for name, way in ways().items():
        calls = way.layer(LAYERS // 2)
        count = figures(calls)
        parts.append(
            f"One layer of a {name}: {count.calls} calls in {count.files} files.\n\n"
            "```text\n" + "\n".join(_lines(calls)) + "\n```"
        )
    return "\n\n".join(parts)


def _lines(calls: list[Call]) -> Iterator[str]:
    """Yield one line per call down to ``DEEPEST``; calls repeated in a row yield one line."""
    top, before = min(call.depth for call in calls), ""
    for call in calls:
        level = call.depth - top
        name = call.code.co_name
        if level > DEEPEST or name.startswith(("<", "__init__")) or _is_plain(call):
            continue
        where = f"{'  ' * level}{name}"
        line = f"{where:<32} {Path(call.file).with_suffix('')!s:<28} {call.summary}".rstrip()
        if line != before:
            yield line if len(line) <= WIDTH else line[: WIDTH - 3].rstrip() + "..."
        before = line


def _is_plain(call: Call) -> bool:
    """Return whether a call only looks something up, which tells nothing about the trace."""
    return not call.summary or call.code.co_name in ("pairs", "counts", "running", "both", "groups")
