"""What a model holds at its peaks: while it sees, while it reads, and while it answers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from transformers import DynamicCache

from foveate.cache.pairs.form import Form
from foveate.errors import FoveateError
from foveate.hf.layer.support import compressible_layers, text_config
from foveate.hf.model.decoder import find
from foveate.hf.model.internals import CACHE, DynamicLayer, last_logits
from foveate.memory.attention import using
from foveate.memory.counting import Counting, once
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
    """A KV cache over all layers and rows, in bytes.

    Attributes:
        policy: its spec.
        kept: tokens of a row's prompt that each KV head keeps, on average.
        reading: at most, while the prompt is read.
        prompt: behind the prompt.
        answer: behind the answer.
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
        tokens: of a row's prompt.
        visual: of these, those of images.
        tower: until the decoder begins, pixels with it; 0 without images.
        prefill: from then on until the prompt is read, logits of its last token with it.
        step: in the decoding step behind the prompt.
        flops: of the decoder while it reads the prompt; None in chunks.
        forms: of the layers that can be compressed, by their number.
        layers: of each layer's cache behind the prompt: of one with a window all of the prompt, as
            transformers cuts a view of that.
        settled: the same behind the first token of the answer, when windows are copied.
        computed: tokens of a row that each layer reads, where some are dropped before it.
        assumed: of the video, what no file says and is taken by default.
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
        """The KV cache behind the prompt."""
        return sum(self.layers)

    @property
    def activations(self) -> int:
        """At the prefill's peak, all but the KV cache."""
        return self.prefill - self.cache

    def peak(self, cache: Cache) -> int:
        """The most at once with another cache than the full one."""
        reading = self.activations + cache.reading
        answering = self.step - self.cache + cache.answer
        return max(self.tower, reading, answering)


@torch.no_grad()
def trace(bare: Bare, request: Request, policy: Policy | None = None) -> Trace:
    """Runs the model's code on the request, without numbers; with the stage ``prune`` of a policy,
    as many tokens go on into each layer as that says.

    Raises:
        Unknown: it looks at numbers that are not there, or nothing tells what it is to read.
        FoveateError: visual tokens of this model cannot be dropped.
    """
    cut = None if policy is None or policy.prune is None else PrefillCut(bare, policy)
    with using(bare.model, request.attention) as fused:
        try:
            return _trace(bare, request, Counting(fused), cut)
        except (FoveateError, Unknown):
            raise
        except Exception as error:  # whatever the model's own code raises
            line = (str(error).strip().splitlines() or [""])[0]
            raise Unknown(
                f"the code of {bare.config.model_type} does not run without numbers "
                f"({type(error).__name__}: {line[:200]})"
            ) from error


def pruned(bare: Bare, policy: Policy, whole: Trace, request: Request) -> Trace:
    """The trace with the tokens alone that a policy computes; ``whole`` itself where that is all.
    While answering, a step's own activations are those beside the full cache.
    """
    if policy.prune is None:
        return whole
    cut = trace(bare, request, policy)
    sizes = zip(cut.layers, whole.settled, strict=True)
    settled = [size if n in cut.forms else later for n, (size, later) in enumerate(sizes)]
    return replace(cut, step=whole.step - whole.cache + cut.cache, settled=tuple(settled))


def _trace(bare: Bare, request: Request, counting: Counting, cut: PrefillCut | None) -> Trace:
    counting.leave_out([*bare.model.parameters(), *bare.model.buffers()])
    clip = video(bare, request) if request.frames and takes_videos(bare.config) else None
    seen = pixels(bare, request) if clip is None else clip.pixels
    runs = request.shown if clip is None else clip.runs
    counting.count(seen.values())
    decoder = find(bare.model, text_config(bare.model)).decoder
    work: int | None = None
    computed: tuple[int, ...] = ()
    with once(bare.model, decoder, counting):
        features, tower = _features(bare, seen, counting)
        count = sum(one.numel() // one.shape[-1] for one in features)
        visual = count // (request.batch * runs) if runs else 0
        given = prompt(bare, request, visual, clip)
        tokens = given["input_ids"].shape[1]
        cache = DynamicCache(config=text_config(bare.model))
        if request.chunk is not None and request.chunk < tokens:
            if cut is not None:
                raise Unknown("a prompt in chunks, of which each would be pruned by itself")
            prefill = _in_chunks(bare, given, cache, request.chunk, counting)
        else:
            del features
            with nullcontext() if cut is None else cut.over(given["input_ids"], [visual] * runs):
                tower, prefill, work = _whole(bare, {**given, **seen}, cache, decoder, counting)
            computed = () if cut is None else cut.computed
    return Trace(
        tokens=tokens,
        visual=visual * runs,
        tower=tower if request.shown else 0,
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
    """The visual tokens as the tower makes them, and its peak."""
    if not seen:
        return [], 0
    kind = "video" if "pixel_values_videos" in seen else "image"
    see = getattr(bare.model, f"get_{kind}_features", None)
    if see is None:
        raise Unknown(f"{bare.config.model_type} does not say how it makes tokens of images")
    counting.begin()
    with counting:
        out = see(**takes(see, seen))
    made = getattr(out, "pooler_output", out)
    return [one for one in tree_leaves(made) if isinstance(one, Tensor)], counting.peak


def _whole(
    bare: Bare, given: Inputs, cache: Any, decoder: nn.Module, counting: Counting
) -> tuple[int, int, int]:
    """The prompt in one piece: the peaks before the decoder begins, and from then on, and the
    operations from then on.
    """
    before: list[int] = []

    def mark(*_: Any) -> None:
        before.extend((counting.peak, counting.flops))
        counting.begin()

    hook = decoder.register_forward_pre_hook(mark)
    counting.begin()
    try:
        with counting:
            _called(bare, cache, **given)
    finally:
        hook.remove()
    return before[0], counting.peak, counting.flops - before[1]


def _in_chunks(bare: Bare, given: Inputs, cache: Any, chunk: int, counting: Counting) -> int:
    """The prompt in chunks, of which the first and the last one are run: the peak."""
    rows, tokens = given["input_ids"].shape
    size = text_config(bare.model).hidden_size
    with counting:
        embeds = torch.empty(rows, tokens, size, dtype=bare.dtype, device="meta")
        counting.begin()
        for end in (chunk, tokens):
            _lengthened(cache, end - chunk)
            _called(bare, cache, inputs_embeds=embeds[:, end - chunk : end])
    return counting.peak


def _lengthened(cache: Any, tokens: int) -> None:
    """The cache as if it had read so many."""
    for layer in cache.layers if tokens else ():
        if not isinstance(layer, DynamicLayer) or layer.keys is None:
            continue
        window = getattr(layer, "sliding_window", None)
        held = tokens if window is None else min(tokens, window - 1)
        for name in ("keys", "values"):
            old = getattr(layer, name)
            setattr(layer, name, old.new_empty((*old.shape[:2], held, old.shape[3])))
        if hasattr(layer, "cumulative_length"):
            layer.cumulative_length = tokens


def _step(bare: Bare, rows: int, cache: Any, counting: Counting) -> int:
    """The peak of one token's pass behind the prompt."""
    token = torch.full((rows, 1), WORD, dtype=torch.long, device="cpu")
    counting.begin()
    with counting:
        _called(bare, cache, input_ids=token)
    return counting.peak


def _called(bare: Bare, cache: Any, **given: Any) -> Any:
    last = last_logits(bare.model, given)
    return bare.model(**given, **{CACHE: cache}, **last, use_cache=True)


def _bytes(layer: Any) -> int:
    """What a layer of a cache holds: pairs, or states; and all of what they are views of."""
    tensors = (one for one in tree_leaves(vars(layer)) if isinstance(one, Tensor) and one.is_meta)
    storages = {one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in tensors}
    return sum(storages.values())


def _forms(bare: Bare, cache: Any) -> dict[int, Form]:
    config = text_config(bare.model)
    heads = config.num_attention_heads
    return {
        place: Form.of(heads, cache.layers[place].keys, cache.layers[place].values)
        for place in compressible_layers(config)
    }
