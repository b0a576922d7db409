"""A long answer token by token: what a cache thinks of each, and what it holds meanwhile.

The rows of a batch go on together, and may not be padded: their prompts are equally long.
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
    """Of each token of an answer: its negative log-likelihood and the token that was likeliest;
    and the bytes that the cache held when it was predicted, over all rows.
    """

    nll: Float[Tensor, "b m"]
    likeliest: Int[Tensor, "b m"]
    held: tuple[int, ...]

    def perplexity(self, first: int = 0, last: int | None = None) -> float:
        """Of the tokens from ``first`` to before ``last``, over all rows."""
        return math.exp(float(self.nll[:, first:last].double().mean()))

    def agreement(self, full: TokenLosses) -> float:
        """The share of tokens for which the likeliest is the full cache's."""
        return float((self.likeliest == full.likeliest).double().mean())


def token_losses(
    session: Session,
    cache: DynamicCache,
    first: Float[Tensor, "b v"],
    tokens: Int[Tensor, "b m"],
) -> TokenLosses:
    """What is thought of these tokens; ``first`` are the logits of the first one."""
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
    """An answer of so many tokens, and what is thought of it: drawn at a temperature, without the
    tokens that would end it. A row's draws follow from the seed and its place.
    """

    def drawn(logits: Float[Tensor, "b v"], step: int) -> Int[Tensor, "b"]:
        rows = torch.arange(logits.shape[0], device=logits.device)[:, None]
        words = torch.arange(logits.shape[1], device=logits.device)[None]
        noise = gumbel(seed, torch.full_like(words, step), rows, words)
        noisy = logits.float() + temperature * noise
        noisy[:, list(without)] = -torch.inf
        return noisy.argmax(-1)

    return _walked(session, cache, first, length, drawn)


@torch.no_grad()
def _walked(
    session: Session, cache: DynamicCache, logits: Tensor, length: int, choice: Choice
) -> tuple[Tensor, TokenLosses]:
    """The tokens that were chosen, one after the other, and what was thought of them."""
    model: Any = session.model
    tokens: list[Tensor] = []
    nll, likeliest, held = [], [], []
    for step in range(length):
        if step:
            logits = model(input_ids=tokens[-1][:, None], **{CACHE: cache}).logits[:, -1]
        tokens.append(choice(logits, step))
        nll.append(-logits.float().log_softmax(-1).gather(1, tokens[-1][:, None])[:, 0])
        likeliest.append(logits.argmax(-1))
        held.append(sum(layer.nbytes for layer in foveate_layers(cache)))
    thought = TokenLosses(torch.stack(nll, 1), torch.stack(likeliest, 1), tuple(held))
    return torch.stack(tokens, 1), thought
