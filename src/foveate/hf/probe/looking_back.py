"""How much a model's own answers would suffer, by gradients: questions about a prompt are answered
from its full cache, and a score is shown how each answer depends on every head's output.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import DynamicCache

from foveate.errors import InvalidInput, UnsupportedModel
from foveate.hf.layer.state import CacheState, RereadPass
from foveate.hf.layer.support import foveate_layers
from foveate.hf.model.devices import input_device
from foveate.hf.probe.follow_up import Asker, Said
from foveate.hf.probe.temporary_passes import restored_after
from foveate.policies.protocols import Rereading


def look_back(
    asker: Asker, reading: Rereading, cache: DynamicCache, state: CacheState, start: Tensor | None
) -> None:
    """Asks each question in place of what follows the prompt's first tokens, has the model answer
    it greedily, and shows the score what the answer depends on. One that is answered with nothing
    tells nothing.

    Args:
        asker: the model.
        reading: which questions, after how many tokens.
        cache: of the prompt, which holds afterwards what it held.
        state: of that cache.
        start: the position after these tokens, if positions were given with the prompt.

    Raises:
        InvalidInput: several prompts at once, or fewer tokens than the questions follow.
        UnsupportedModel: no gradients can be had of it, or other layers than full attention hold
            all of the prompt.
    """
    _check(cache, reading.after)
    for ids in reading.questions:
        tokens = torch.tensor([ids], dtype=torch.long, device=input_device(asker.model))
        with _cut(cache, state, RereadPass(None), reading.after):
            said = asker.answered(tokens, reading.longest, cache, state, start)
        if said.tokens.shape[1] > said.question_tokens:
            _show(asker, said, reading.after, cache, state, start)


def _check(cache: DynamicCache, after: int) -> None:
    layers = foveate_layers(cache)
    held: list[Any] = cache.layers
    rows, seen = layers[0].pairs.counts.shape[0], layers[0].seen
    if rows != 1 or not 0 < after <= seen:
        raise InvalidInput(
            f"questions follow the first {after} tokens of one prompt, and {rows} prompt(s) of "
            f"{seen} tokens were given. Give prompts one by one, and tokens that they have."
        )
    if after < seen and any(one not in layers and one.is_initialized for one in held):
        raise UnsupportedModel(
            "questions are asked after a part of the prompt, and some layers of this model "
            "(sliding windows, recurrent states) have read all of it."
        )


@contextmanager
def _cut(cache: DynamicCache, state: CacheState, reread: RereadPass, after: int) -> Iterator[None]:
    """A cache that is restored afterwards, of the prompt's first tokens."""
    with restored_after(cache, state, reread):
        for layer in foveate_layers(cache):
            layer.cut(after)
        yield


def _show(
    asker: Asker,
    said: Said,
    after: int,
    cache: DynamicCache,
    state: CacheState,
    start: Tensor | None,
) -> None:
    """Reads question and answer once more in one pass, with gradients."""
    places = torch.arange(said.tokens.shape[1], device=said.tokens.device)
    reread = RereadPass(places[None], outputs={})
    try:
        with _cut(cache, state, reread, after), torch.inference_mode(False), torch.enable_grad():
            logits = asker.follow(said.tokens, cache, state, start)
            sure = sureness(logits[:, said.question_tokens - 1 : -1])
        noted = reread.outputs or {}
        gradients = torch.autograd.grad(sure, [output for _, output in noted.values()])
    except RuntimeError as error:  # of PyTorch, which has none more narrow
        raise UnsupportedModel(
            f"no gradients of answers can be had of this model: {error}"
        ) from error
    for (shown, _), gradient in zip(noted.values(), gradients, strict=True):
        state.reading.answered(shown, gradient)


def sureness(logits: Float[Tensor, "b t v"]) -> Float[Tensor, ""]:
    """How sure a model is of what it says: the logit of the top token less the logsumexp of all
    others, added up over all places.
    """
    best, place = logits.float().max(-1)
    others = logits.float().scatter(-1, place[..., None], -torch.inf)
    total: Tensor = (best - others.logsumexp(-1)).sum()
    return total
