"""Token-by-token losses and cache sizes of long answers.

The rows of a batch are decoded together and must not be padded: their prompts have equal length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import DynamicCache

from foveate.hf import Session
from foveate.hf.layer.support import foveate_layers
from foveate.hf.model.internals import CACHE
from foveate.stages.score.attention_free import gumbel

Choice = Callable[[Float[Tensor, "b v"], int], Int[Tensor, "b"]]


class TokenLosses(NamedTuple):
    """Losses of an answer's tokens.

    ``nll``: negative log-likelihood; ``likeliest``: the most likely token; ``stored_bytes``: bytes
    of the cache, all rows, when each token was predicted.
    """

    nll: Float[Tensor, "b m"]
    likeliest: Int[Tensor, "b m"]
    stored_bytes: tuple[int, ...]

    def perplexity(self, first: int = 0, last: int | None = None) -> float:
        """Return the perplexity of tokens ``first`` to ``last`` (exclusive), over all rows."""
        return math.exp(float(self.nll[:, first:last].double().mean()))

    def agreement(self, full: TokenLosses) -> float:
        """Return the share of tokens at which both caches' most likely tokens agree."""
        return float((self.likeliest == full.likeliest).double().mean())


def token_losses(
    session: Session,
    cache: DynamicCache,
    first: Float[Tensor, "b v"],
    tokens: Int[Tensor, "b m"],
) -> TokenLosses:
    """Compute the losses of given tokens; ``first`` are the logits of the first token."""
    return _walked(session, cache, first, tokens.shape[1], lambda _, step: tokens[:, step])[1]


def answered(
    session: Session,
    cache: DynamicCache,
    first: Float[Tensor, "b v"],
    length: int,
    *,
    temperature: float,
    seed: int = 0,
    without: Collection[int] = (),
) -> tuple[Int[Tensor, "b m"], TokenLosses]:
    """Sample an answer of ``length`` tokens, and compute its losses.

    Tokens in ``without``, such as end tokens, are never drawn. A row's draws follow from the seed
    and its index.
    """

    def drawn(logits: Float[Tensor, "b v"], step: int) -> Int[Tensor, "b"]:
        rows = torch.arange(logits.shape[0], device=logits.device)[:, None]
        vocabulary = torch.arange(logits.shape[1], device=logits.device)[None]
        noise = gumbel(seed, torch.full_like(vocabulary, step), rows, vocabulary)
        noisy = logits.float() + temperature * noise
        noisy[:, list(without)] = -torch.inf
        return noisy.argmax(-1)

    return _walked(session, cache, first, length, drawn)


@torch.no_grad()
def _walked(
    session: Session, cache: DynamicCache, logits: Tensor, length: int, choice: Choice
) -> tuple[Tensor, TokenLosses]:
    """Decode tokens one by one with ``choice``, and compute their losses."""
    model: Any = session.model
    tokens: list[Tensor] = []
    nll, likeliest, stored_bytes = [], [], []
    for step in range(length):
        if step:
            logits = model(input_ids=tokens[-1][:, None], **{CACHE: cache}).logits[:, -1]
        tokens.append(choice(logits, step))
        nll.append(-logits.float().log_softmax(-1).gather(1, tokens[-1][:, None])[:, 0])
        likeliest.append(logits.argmax(-1))
        stored_bytes.append(sum(layer.nbytes for layer in foveate_layers(cache)))
    losses = TokenLosses(torch.stack(nll, 1), torch.stack(likeliest, 1), tuple(stored_bytes))
    return torch.stack(tokens, 1), losses
