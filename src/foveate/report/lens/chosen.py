"""What each policy keeps of a prompt that was read once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformers import PreTrainedModel

from foveate.backends.hf import Recording, Session, chosen, compress, record
from foveate.backends.hf.support import compressible_layers, text_config
from foveate.core.policy import Policy


class Choice(NamedTuple):
    """What one policy keeps: a row is a KV head, layer after layer; t counts tokens.

    ``scores`` are as in :class:`foveate.Kept`: +inf where a token is protected, NaN where nothing
    was scored, since everything fits the budget.
    """

    policy: Policy
    kept: Bool[Tensor, "r t"]
    scores: Float[Tensor, "r t"]


class Seen(NamedTuple):
    """A prompt under all policies: as many choices of each method as it has budgets.

    ``layers`` are the model's indices of the layers that are compressed, ``heads`` their numbers of
    KV heads.
    """

    layers: list[int]
    heads: list[int]
    choices: list[list[Choice]]


def seen(
    model: PreTrainedModel,
    inputs: Mapping[str, Any],
    policies: Sequence[Sequence[Policy]],
    tokenizer: Any = None,
) -> Seen:
    """Reads the prompt, and has every policy choose.

    The prompt is read as the policy's own block would read it: those that need column sums share a
    reading whose attention adds them up, and the others one that does not. So each keeps what its
    block keeps, to the last token.
    """
    readings: dict[bool, Recording] = {}

    def choice(policy: Policy) -> Choice:
        sums = policy.reads_column_sums
        if sums not in readings:
            readings[sums] = record(model, sums=sums, **inputs)
        return _choice(compress(model, policy, tokenizer=tokenizer), readings[sums])

    choices = [[choice(policy) for policy in each] for each in policies]
    layers = next(iter(readings.values())).layers
    heads = [layer.k.shape[1] for layer in layers]
    return Seen(compressible_layers(text_config(model)), heads, choices)


def _choice(block: Session, recording: Recording) -> Choice:
    with block as session:
        kept = chosen(session, recording)
    scores = [
        one.mask.float().fill_(torch.nan) if one.scores is None else one.scores for one in kept
    ]
    return Choice(
        block.policy,
        torch.cat([one.mask[0] for one in kept]).cpu(),
        torch.cat([one[0] for one in scores]).cpu(),
    )
