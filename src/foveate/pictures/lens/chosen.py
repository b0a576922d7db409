"""What each policy keeps of a prompt that was read once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from transformers import PreTrainedModel

from foveate.hf import Recording, Session, chosen, compress, record
from foveate.hf.attach.dividing import divided_for
from foveate.hf.layer.support import compressible_layers, text_config
from foveate.policies.policy import Policy
from foveate.policies.pruning import Prune


class Choice(NamedTuple):
    """What one policy keeps: a row is a KV head, layer after layer; t counts tokens.

    ``scores`` are as in :class:`foveate.Kept`: +inf where a token is protected, NaN where nothing
    was scored: everything fits the budget, or the layer never computed the token. ``computed`` is
    True where it did, which tells what was evicted from what was dropped; None where all layers
    computed all tokens.
    """

    policy: Policy
    kept: Bool[Tensor, "r t"]
    scores: Float[Tensor, "r t"]
    computed: Bool[Tensor, "r t"] | None = None


class LensPrompt(NamedTuple):
    """A prompt under all policies: as many choices of each method as it has budgets.

    ``layers`` are the model's indices of the layers that are compressed, ``heads`` their numbers of
    KV heads.
    """

    layers: list[int]
    heads: list[int]
    choices: list[list[Choice]]


@dataclass(frozen=True)
class Readings:
    """A prompt, which is read as the block of a policy would read it: policies that need column
    sums share a reading whose attention adds them up, and the others one that does not. So each
    keeps what its block keeps, to the last token.
    """

    model: PreTrainedModel
    inputs: Mapping[str, Any]
    _read: dict[tuple[bool, Prune | None], Recording] = field(default_factory=dict, repr=False)

    def of(self, policy: Policy) -> Recording:
        """The prompt as this policy reads it; read when it is asked for the first time."""
        tokens = self.inputs["input_ids"].shape[1]
        kind = policy.reads_column_sums, divided_for(self.model, policy, [tokens]).prune
        if kind not in self._read:
            sums, prune = kind
            self._read[kind] = record(self.model, sums=sums, prune=prune, **self.inputs)
        return self._read[kind]


def seen(
    readings: Readings, policies: Sequence[Sequence[Policy]], tokenizer: Any = None
) -> LensPrompt:
    """Has every policy choose from the prompt."""
    model = readings.model

    def choice(policy: Policy) -> Choice:
        return _choice(compress(model, policy, tokenizer=tokenizer), readings.of(policy))

    choices = [[choice(policy) for policy in each] for each in policies]
    layers = readings.of(policies[0][0]).layers
    heads = [layer.k.shape[1] for layer in layers]
    return LensPrompt(compressible_layers(text_config(model)), heads, choices)


def _choice(block: Session, recording: Recording) -> Choice:
    with block as session:
        kept = chosen(session, recording)
    scores = [
        one.mask.float().fill_(torch.nan) if one.scores is None else one.scores for one in kept
    ]
    pos, t = [layer.pos[0] for layer in recording.layers], recording.tokens
    masks = [_of_tokens(one.mask[0], at, t, False) for one, at in zip(kept, pos, strict=True)]
    scores_of = [_of_tokens(one[0], at, t, torch.nan) for one, at in zip(scores, pos, strict=True)]
    computed = None
    if block.policy.prune is not None:
        whole = [torch.ones_like(at, dtype=torch.bool) for at in pos]
        there = [_of_tokens(one, at, t, False) for one, at in zip(whole, pos, strict=True)]
        computed = torch.cat(there).cpu()
    return Choice(block.policy, torch.cat(masks).cpu(), torch.cat(scores_of).cpu(), computed)


def _of_tokens(
    slots: Shaped[Tensor, "h n"], pos: Int[Tensor, "h n"], tokens: int, nowhere: float | bool
) -> Shaped[Tensor, "h t"]:
    """What stands at each token's slot; ``nowhere`` for those that the layer never computed."""
    if slots.shape[1] == tokens:
        return slots
    spread = torch.full((len(slots), tokens), nowhere, dtype=slots.dtype, device=slots.device)
    return spread.scatter(1, pos, slots)
