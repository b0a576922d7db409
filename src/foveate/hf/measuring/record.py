"""Recording of a model's layers without compression; and one prefill for many policies: a prompt is
read once, and every policy branches from it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import DynamicCache

from foveate.cache.layer import Layer, Scores
from foveate.cache.slots import Slots, derived
from foveate.compression.pipeline import Kept, everything
from foveate.errors import InvalidInput
from foveate.hf.attach.model_policy import divide_for_prompt
from foveate.hf.attach.mrope import note_recorded
from foveate.hf.attach.session import Session, compress
from foveate.hf.layer.cache_layer import FoveateLayer
from foveate.hf.layer.support import convert, foveate_layers, text_config
from foveate.hf.model.internals import CACHE, check_inputs, last_logits
from foveate.hf.model.module_state import ModuleStates
from foveate.policies.policy import Policy
from foveate.policies.protocols import Moment, Score
from foveate.policies.pruning import Prune
from foveate.policies.spec import print_value
from foveate.stages.budget import Uniform
from foveate.stages.select import TopK


class Observer:
    """A score that ranks nothing; subclasses use its ``observe``."""

    def queries(self, tokens: int) -> int:
        return 0

    def __call__(self, layer: Layer) -> Scores:
        return Scores(layer.k.new_zeros(layer.k.shape[:3], dtype=torch.float32))


@dataclass(frozen=True)
class Never:
    """A rule that never compresses. With ``decodes`` the score observes each token of the answer,
    too.
    """

    decodes: bool = False
    reads: bool = field(default=False, init=False)

    def __call__(self, moment: Moment) -> bool:
        return False


def observing(score: Score, *, decodes: bool) -> Policy:
    """Return a policy under which the score observes every layer, and nothing is compressed."""
    return Policy(score=score, budget=Uniform(amount=1), select=TopK(), when=Never(decodes=decodes))


@dataclass(frozen=True)
class Recorder(Observer):
    """A score that records every layer."""

    reads_column_sums: ClassVar[bool] = False
    keeps_passes: ClassVar[bool] = True
    seen: dict[int, Layer] = field(default_factory=dict, repr=False)  # not part of a spec
    reads_hidden_states: bool = False

    def observe(self, layer: Layer) -> Mapping[str, Tensor]:
        """Record the layer."""
        self.seen[layer.ordinal] = replace(layer, slots=_without_budget(layer.slots))
        return {}


@dataclass(frozen=True)
class SummingRecorder(Recorder):
    """A recorder with the column sums that the attention computes as by-products."""

    reads_column_sums: ClassVar[bool] = True


@dataclass(frozen=True)
class Recording:
    """A prompt that was read with the full cache, or, with ``prune``, with that of all tokens that
    this stage had computed.

    ``logits`` [b, vocabulary] are those of the token after it. ``cache`` and ``layers``, as scores
    see them, are read-only. ``noted`` is the state of the model's modules after reading: every
    branch starts from it, whatever was answered in between.
    """

    model: nn.Module
    cache: DynamicCache
    layers: tuple[Layer, ...]
    logits: Float[Tensor, "b vocabulary"]
    noted: ModuleStates
    prune: Prune | None = None

    @property
    def tokens(self) -> int:
        """Length of the prompt, padding included."""
        return foveate_layers(self.cache)[0].seen


@derived
def _without_budget(slots: Slots) -> Slots:
    """Return the slots without budget: a branch has its own."""
    return replace(slots, tokens=None)


def record(
    model: nn.Module,
    *,
    vision: Tensor | None = None,
    sums: bool = True,
    hidden: bool = False,
    prune: Prune | None = None,
    **inputs: Any,
) -> Recording:
    """Read a prompt once, so that many policies can branch from it (:func:`branch`).

    Stores the full cache and all queries of the prompt. A branch keeps the pairs that a context of
    its own would have kept, to the rounding of the attention: with ``sums``, on a CPU, the
    attention computes the column sums that scores such as H2O's need; without it those scores
    compute the attention a second time.

    Args:
        model: see ``compress``.
        vision: see ``compress``.
        sums: True if some of the policies read column sums.
        hidden: True if some of the policies read hidden states, which are stored then, too.
        prune: the policies' prune stage (``Policy.prune``).
        inputs: the inputs of one prompt, as ``generate`` takes them.

    Raises:
        InvalidParameter: an argument that the model does not read.
    """
    recorder = (SummingRecorder if sums else Recorder)(reads_hidden_states=hidden)
    policy = replace(observing(recorder, decodes=False), prune=prune)
    with (
        compress(model, policy, vision=vision) as session,
        torch.no_grad(),
    ):
        check_inputs(session.model, inputs)
        cache = DynamicCache(config=session.model.config)
        last = last_logits(session.model, inputs)
        out = session.model(**inputs, **{CACHE: cache}, **last, use_cache=True)
    layers = tuple(recorder.seen[ordinal] for ordinal in range(len(foveate_layers(cache))))
    return Recording(model, cache, layers, out.logits[:, -1], ModuleStates(session.model), prune)


def chosen(session: Session, recording: Recording) -> list[Kept]:
    """Return the pairs of the recorded prompt that the session's policy keeps, layer by layer.

    Raises:
        InvalidInput: another model's recording.
    """
    noted: dict[int, Kept] = {}
    branch(session, recording, noted=noted)
    layers = enumerate(zip(foveate_layers(recording.cache), recording.layers, strict=True))
    return [
        noted[ordinal] if ordinal in noted else everything(_as_stored(source, layer))
        for ordinal, (source, layer) in layers
    ]


def _as_stored(source: FoveateLayer, seen: Layer) -> Layer:
    """Return a recorded layer with the pairs that its cache stores, which may be latents."""
    k, v, _ = source.padded()
    return seen if k.shape[1] == seen.k.shape[1] else seen.with_latents(k, v)


def branch(
    session: Session, recording: Recording, *, noted: dict[int, Kept] | None = None
) -> DynamicCache:
    """Compress the recorded prompt's cache under the session's policy; return it, ready to
    continue. ``noted``, if not None, receives the kept pairs of each layer.

    Raises:
        InvalidInput: another model's recording, or one of other tokens than the policy computes.
    """
    if recording.model is not session.model:
        raise InvalidInput(
            f"this prompt was recorded with another {type(recording.model).__name__} than the one "
            "of this block. Record it with this one."
        )
    cache = DynamicCache(config=session.model.config)
    state = convert(cache, text_config(session.model), session.policy, session.link)
    if session.policy.left_open:
        lengths = recording.layers[0].slots.lengths.tolist()
        divide_for_prompt(session.model, state, lengths, recording.tokens)
    if recording.prune != state.policy.prune:
        raise InvalidInput(
            f"this prompt was recorded with prune={print_value(recording.prune)}, and the policy "
            f"says prune={print_value(state.policy.prune)}: other tokens are computed. Record it "
            "with record(..., prune=policy.prune)."
        )
    sources: list[Any] = recording.cache.layers
    layers = foveate_layers(cache)
    recorded = foveate_layers(recording.cache)
    cache.layers = [
        layer if layer in layers else copy.deepcopy(source)
        for layer, source in zip(cache.layers, sources, strict=True)
    ]
    state.follow(recorded[0].state)
    note_recorded(state, recording.tokens)
    state.update_turn(end=recording.tokens)
    state.noted = noted
    state.reading.most_heads = None  # the pairs are the recording's, so none may be shed
    for layer, source, seen in zip(layers, recorded, recording.layers, strict=True):
        layer.refill(source.pairs, source.seen, 0)
        with layer.watch.running(seen.k.device):
            layer.read(_as_stored(source, seen))
    recording.noted.put_back()
    session.read_again(cache)
    state.update_turn(end=None)
    state.noted = None
    for layer, source in zip(layers, recorded, strict=True):
        if layer.pairs is source.pairs:
            layer.refill(source.pairs.fork(), source.seen, source.seen)
    session.adopt(cache)
    return cache
