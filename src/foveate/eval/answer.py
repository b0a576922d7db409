"""Going on from a branch: a greedy answer, and what is thought of a given one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from foveate.backends.hf import Session
from foveate.backends.hf.internals import CACHE


class Told(NamedTuple):
    """What is thought of ``m`` given tokens, one after the other.

    ``logits`` [m, vocabulary] are those that each token was to be predicted from, in float32.
    ``features`` [layers + 1, m - 1, hidden] are the hidden states at all given tokens but the last.
    """

    logits: Float[Tensor, "m vocabulary"]
    features: Float[Tensor, "l t hidden"]


def ends(model: PreTrainedModel) -> set[int]:
    """The tokens that end an answer."""
    found = getattr(model.generation_config, "eos_token_id", None)
    return set(found) if isinstance(found, list) else set() if found is None else {int(found)}


def asked(
    model: PreTrainedModel,
    cache: DynamicCache,
    first: Float[Tensor, "b v"],
    rest: Int[Tensor, "b r"],
) -> Float[Tensor, "b v"]:
    """The logits of the answers' first tokens, after what follows of the prompt."""
    if rest.shape[1] == 0:
        return first
    logits: Tensor = model(input_ids=rest, **{CACHE: cache}).logits[:, -1]
    return logits


def greedy(
    model: PreTrainedModel, cache: DynamicCache, first: Float[Tensor, "b v"], longest: int
) -> list[list[int]]:
    """The tokens of every row's answer, the one that ends it included. Rows leave the cache when
    they have ended, unless all have.
    """
    stop, logits = ends(model), first
    answers: list[list[int]] = [[] for _ in range(first.shape[0])]
    going = answers
    while True:
        for answer, token in zip(going, logits.argmax(-1).tolist(), strict=True):
            answer.append(token)
        left = [i for i, answer in enumerate(going)
                if answer[-1] not in stop and len(answer) < longest]  # fmt: skip
        if not left:
            return answers
        if len(left) < len(going):
            cache.batch_select_indices(torch.tensor(left, device=first.device))
        going = [going[i] for i in left]
        fed = torch.tensor([answer[-1:] for answer in going], device=first.device)
        logits = model(input_ids=fed, **{CACHE: cache}).logits[:, -1]


def told(
    session: Session, cache: DynamicCache, first: Float[Tensor, "b v"], tokens: Sequence[int]
) -> list[Told]:
    """Feeds the tokens but the last to every row of the cache: at once, or one by one where what is
    kept changes while decoding.
    """
    model: Any = session.model
    rows = first.shape[0]
    fed = torch.tensor([tokens[:-1]], device=first.device).expand(rows, -1)
    size = 1 if session.policy.when.decodes else max(1, fed.shape[1])
    logits, features = [first[:, None]], []
    for part in torch.split(fed, size, dim=1) if fed.shape[1] else ():
        out = model(input_ids=part, **{CACHE: cache}, output_hidden_states=True)
        logits.append(out.logits)
        features.append(torch.stack(out.hidden_states, 1))
    hidden = torch.cat(features, 2).float() if features else first.new_zeros(rows, 1, 0, 1)
    return [Told(*both) for both in zip(torch.cat(logits, 1).float(), hidden, strict=True)]
