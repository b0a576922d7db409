"""Traces of a model's memory: its peaks while it sees, reads and answers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from transformers import DynamicCache

from foveate.cache.pairs.pair_sizes import Form
from foveate.errors import FoveateError
from foveate.hf.layer.support import compressible_layers, text_config
from foveate.hf.model.decoder import find
from foveate.hf.model.internals import CACHE, DynamicLayer, last_logits
from foveate.hf.model.layer_settings import layer_settings
from foveate.memory.attention import use_attention
from foveate.memory.counting import Counting, run_once
from foveate.memory.model import Bare
from foveate.memory.processors.inputs import (
    WORD,
    Inputs,
    pixels,
    prompt,
    takes,
    takes_videos,
    video,
)
from foveate.memory.pruned import PrefillCut
from foveate.memory.request import Request, Unknown
from foveate.policies.policy import Policy


class Cache(NamedTuple):
    """Bytes of a KV cache over all layers and rows.

    Attributes:
        policy: spec of the policy.
        kept: tokens of a row's prompt that each KV head keeps, on average.
        reading: peak while the prompt is read.
        prompt: bytes after the prompt.
        answer: bytes after the answer.
    """

    policy: str
    kept: int
    reading: int
    prompt: int
    answer: int


@dataclass(frozen=True)
class Trace:
    """Peaks in bytes over all rows, weights left out, with the full cache.

    Attributes:
        tokens: tokens of a row's prompt.
        visual: visual tokens among these.
        tower: peak until the decoder begins, including pixels; 0 without images.
        prefill: peak from then on until the prompt is read, including its last token's logits.
        step: peak of the first decoding step.
        flops: operations of the decoder while it reads the prompt; None in chunks.
        forms: storage forms of the layers that can be compressed, by their number.
        layers: bytes of each layer's cache after the prompt. A layer with a window holds the whole
            prompt, because transformers keeps a view of it.
        settled: the same after the first token of the answer, when windows are copied.
        computed: tokens of a row that each layer reads, if some are pruned.
        assumed: settings of the video that no file has, taken by default.
    """

    tokens: int
    visual: int
    tower: int
    prefill: int
    step: int
    forms: Mapping[int, Form]
    layers: tuple[int, ...]
    settled: tuple[int, ...] = ()
    flops: int | None = None
    computed: tuple[int, ...] = ()
    assumed: str = ""

    @property
    def cache(self) -> int:
        """Bytes of the KV cache after the prompt."""
        return sum(self.layers)

    @property
    def activations(self) -> int:
        """Bytes at the prefill's peak without the KV cache."""
        return self.prefill - self.cache

    def peak(self, cache: Cache) -> int:
        """Return the peak with another cache than the full one."""
        reading = self.activations + cache.reading
        answering = self.step - self.cache + cache.answer
        return max(self.tower, reading, answering)


@torch.no_grad()
def trace(bare: Bare, request: Request, policy: Policy | None = None) -> Trace:
    """Run the model's code for the request on "meta" tensors, pruned if the policy has a stage
    ``prune``.

    Raises:
        Unknown: the model reads numbers that are not there, or its inputs are unknown.
        FoveateError: the policy cannot prune this model.
    """
    cut = None if policy is None or policy.prune is None else PrefillCut(bare, policy)
    with use_attention(bare.model, request.attention) as fused:
        try:
            return _trace(bare, request, Counting(fused), cut)
        except (FoveateError, Unknown):
            raise
        except Exception as error:  # the model's own code may raise anything
            line = (str(error).strip().splitlines() or [""])[0]
            raise Unknown(
                f"the code of {bare.config.model_type} does not run without numbers "
                f"({type(error).__name__}: {line[:200]})"
            ) from error


def pruned(bare: Bare, policy: Policy, stock: Trace, request: Request) -> Trace:
    """Return the trace without the tokens that a policy prunes; ``stock`` itself if it prunes none.
    The activations of a decoding step are taken from ``stock``.
    """
    if policy.prune is None:
        return stock
    cut = trace(bare, request, policy)
    sizes = zip(cut.layers, stock.settled, strict=True)
    settled = [size if n in cut.forms else later for n, (size, later) in enumerate(sizes)]
    return replace(cut, step=stock.step - stock.cache + cut.cache, settled=tuple(settled))


def _trace(bare: Bare, request: Request, counting: Counting, cut: PrefillCut | None) -> Trace:
    counting.exclude([*bare.model.parameters(), *bare.model.buffers()])
    clip = video(bare, request) if request.frames and takes_videos(bare.config) else None
    seen = pixels(bare, request) if clip is None else clip.pixels
    runs = request.image_count if clip is None else clip.runs
    counting.count(seen.values())
    decoder = find(bare.model, text_config(bare.model)).decoder
    work: int | None = None
    computed: tuple[int, ...] = ()
    with run_once(bare.model, decoder, counting):
        features, tower = _features(bare, seen, counting)
        count = sum(feature.numel() // feature.shape[-1] for feature in features)
        visual = count // (request.batch * runs) if runs else 0
        inputs = prompt(bare, request, visual, clip)
        tokens = inputs["input_ids"].shape[1]
        cache = DynamicCache(config=text_config(bare.model))
        if request.chunk is not None and request.chunk < tokens:
            if cut is not None:
                raise Unknown(
                    "a prompt in chunks cannot be pruned, as each chunk would be pruned by itself"
                )
            prefill = _in_chunks(bare, inputs, cache, request.chunk, counting)
        else:
            del features
            with nullcontext() if cut is None else cut.over(inputs["input_ids"], [visual] * runs):
                tower, prefill, work = _in_one_pass(
                    bare, {**inputs, **seen}, cache, decoder, counting
                )
            computed = () if cut is None else cut.computed
    return Trace(
        tokens=tokens,
        visual=visual * runs,
        tower=tower if request.image_count else 0,
        prefill=prefill,
        layers=tuple(_bytes(layer) for layer in cache.layers),
        forms=_forms(bare, cache),
        step=0 if cut else _step(bare, request.batch, cache, counting),
        settled=() if cut else tuple(_bytes(layer) for layer in cache.layers),
        flops=work,
        computed=computed,
        assumed="" if clip is None else clip.assumed,
    )


def _features(bare: Bare, seen: Inputs, counting: Counting) -> tuple[list[Tensor], int]:
    """Return the tower's visual tokens, and its peak."""
    if not seen:
        return [], 0
    kind = "video" if "pixel_values_videos" in seen else "image"
    see = getattr(bare.model, f"get_{kind}_features", None)
    if see is None:
        raise Unknown(f"{bare.config.model_type} does not say how it makes tokens of images")
    counting.begin()
    with counting:
        out = see(**takes(see, seen))
    outputs = getattr(out, "pooler_output", out)
    return [tensor for tensor in tree_leaves(outputs) if isinstance(tensor, Tensor)], counting.peak


def _in_one_pass(
    bare: Bare, inputs: Inputs, cache: Any, decoder: nn.Module, counting: Counting
) -> tuple[int, int, int]:
    """Read the prompt in one pass. Return the peak before the decoder begins, the peak from then
    on, and the operations from then on.
    """
    before: list[int] = []

    def mark(*_: Any) -> None:
        before.extend((counting.peak, counting.flops))
        counting.begin()

    hook = decoder.register_forward_pre_hook(mark)
    counting.begin()
    try:
        with counting:
            _call(bare, cache, **inputs)
    finally:
        hook.remove()
    return before[0], counting.peak, counting.flops - before[1]


def _in_chunks(bare: Bare, inputs: Inputs, cache: Any, chunk: int, counting: Counting) -> int:
    """Read the first and the last chunk of the prompt, and return the peak."""
    rows, tokens = inputs["input_ids"].shape
    size = text_config(bare.model).hidden_size
    with counting:
        embeds = torch.empty(rows, tokens, size, dtype=bare.dtype, device="meta")
        counting.begin()
        for end in (chunk, tokens):
            _extend(cache, end - chunk)
            _call(bare, cache, inputs_embeds=embeds[:, end - chunk : end])
    return counting.peak


def _extend(cache: Any, tokens: int) -> None:
    """Resize the cache as if it had read so many tokens."""
    for layer in cache.layers if tokens else ():
        if not isinstance(layer, DynamicLayer) or layer.keys is None:
            continue
        window = getattr(layer, "sliding_window", None)
        length = tokens if window is None else min(tokens, window - 1)
        for name in ("keys", "values"):
            old = getattr(layer, name)
            setattr(layer, name, old.new_empty((*old.shape[:2], length, old.shape[3])))
        if hasattr(layer, "cumulative_length"):
            layer.cumulative_length = tokens


def _step(bare: Bare, rows: int, cache: Any, counting: Counting) -> int:
    """Return the peak of the first decoding step."""
    token = torch.full((rows, 1), WORD, dtype=torch.long, device="cpu")
    counting.begin()
    with counting:
        _call(bare, cache, input_ids=token)
    return counting.peak


def _call(bare: Bare, cache: Any, **inputs: Any) -> Any:
    last = last_logits(bare.model, inputs)
    return bare.model(**inputs, **{CACHE: cache}, **last, use_cache=True)


def _bytes(layer: Any) -> int:
    """Return the bytes of a cache layer, counting the full storage behind its views."""
    leaves = [leaf for leaf in tree_leaves(vars(layer)) if isinstance(leaf, Tensor)]
    storages = [leaf.untyped_storage() for leaf in leaves if leaf.is_meta]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def _forms(bare: Bare, cache: Any) -> dict[int, Form]:
    config = text_config(bare.model)
    heads = layer_settings(config, "num_attention_heads")
    return {
        index: Form.of(heads[index], cache.layers[index].keys, _values(cache.layers[index]))
        for index in compressible_layers(config)
    }


def _values(layer: Any) -> Tensor:
    """Return a layer's values, with index keys behind them, if it has any, as they are stored."""
    index_keys: Tensor | None = getattr(layer, "indexer_keys", None)
    values: Tensor = layer.values
    return values if index_keys is None else torch.cat([values, index_keys[:, None]], -1)
