"""Going on from a branch: a greedy answer, and what is thought of a given one; of one prompt, or of
several at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from foveate.hf import Session
from foveate.hf.measuring.joined import join, next_inputs
from foveate.hf.model.internals import CACHE
from foveate.hf.probe.follow_up import ends


class TeacherForced(NamedTuple):
    """What is thought of ``m`` given tokens, one after the other.

    ``logits`` [m, vocabulary] are those that each token was to be predicted from, in float32.
    ``features`` [layers + 1, m - 1, hidden] are the hidden states at all given tokens but the last.
    """

    logits: Float[Tensor, "m vocabulary"]
    features: Float[Tensor, "l t hidden"]


class PrefilledPrompt(NamedTuple):
    """A prompt's cache, ready to answer, and the logits of the answer's first token."""

    cache: DynamicCache
    first: Float[Tensor, "1 v"]


def with_the_rest(
    model: PreTrainedModel,
    cache: DynamicCache,
    first: Float[Tensor, "1 v"],
    rest: Int[Tensor, "1 r"],
) -> Float[Tensor, "1 v"]:
    """The logits of the answer's first token, after what follows of the prompt."""
    if rest.shape[1] == 0:
        return first
    logits: Tensor = model(input_ids=rest, **{CACHE: cache}).logits[:, -1]
    return logits


def greedy(
    model: PreTrainedModel,
    cache: DynamicCache,
    first: Float[Tensor, "1 v"],
    longest: int,
    goes_on: Callable[[Sequence[int]], bool] = lambda _: True,
) -> list[int]:
    """The tokens of the answer, the one that ends it included; or up to where it does not go on."""
    stop, answer = ends(model), [int(first.argmax(-1))]
    while answer[-1] not in stop and len(answer) < longest and goes_on(answer):
        fed = torch.tensor([answer[-1:]], dtype=torch.long, device=first.device)
        logits = model(input_ids=fed, **{CACHE: cache}).logits[:, -1]
        answer.append(int(logits.argmax(-1)))
    return answer


def teacher_forced(
    session: Session, cache: DynamicCache, first: Float[Tensor, "1 v"], tokens: Sequence[int]
) -> TeacherForced:
    """Feeds the tokens but the last: at once, or one by one where what is kept changes while
    decoding.
    """
    model: Any = session.model
    fed = torch.tensor([tokens[:-1]], dtype=torch.long, device=first.device)
    size = 1 if session.policy.when.decodes else max(1, fed.shape[1])
    logits, features = [first], []
    for part in torch.split(fed, size, dim=1) if fed.shape[1] else ():
        out = model(input_ids=part, **{CACHE: cache}, output_hidden_states=True)
        logits.append(out.logits[0])
        features.append(torch.cat(out.hidden_states))
    hidden = torch.cat(features, 1).float() if features else first.new_zeros(1, 0, 1).float()
    return TeacherForced(torch.cat(logits).float(), hidden)


@torch.no_grad()
def greedy_together(
    session: Session, prompts: Sequence[PrefilledPrompt], longest: int
) -> list[list[int]]:
    """As :func:`greedy`, of each prompt. Their caches stay as they are; rows that have ended go on
    until all have, and what they say then is dropped.
    """
    if not prompts:
        return []
    cache, stop = join(session, [one.cache for one in prompts]), ends(session.model)
    new = torch.cat([one.first for one in prompts]).argmax(-1)
    answers = [[token] for token in new.tolist()]
    while any(said[-1] not in stop and len(said) < longest for said in answers):
        logits = session.model(**next_inputs(cache, new[:, None])).logits[:, -1]
        new = logits.argmax(-1)
        for said, token in zip(answers, new.tolist(), strict=True):
            if said[-1] not in stop:
                said.append(token)
    return answers


@torch.no_grad()
def teacher_forced_together(
    session: Session, prompts: Sequence[PrefilledPrompt], tokens: Sequence[Sequence[int]]
) -> list[TeacherForced]:
    """As :func:`teacher_forced`, of each prompt and its tokens, at once."""
    longest = max(map(len, tokens), default=1) - 1
    if longest == 0:
        nothing = [one.first.new_zeros(1, 0, 1).float() for one in prompts]
        return [
            TeacherForced(one.first.float(), x) for one, x in zip(prompts, nothing, strict=True)
        ]
    fed = [[*said[:-1], *[said[-1]] * (longest + 1 - len(said))] for said in tokens]
    cache = join(session, [one.cache for one in prompts])
    at = prompts[0].first.device
    inputs = next_inputs(cache, torch.tensor(fed, dtype=torch.int64, device=at))
    out = session.model(**inputs, output_hidden_states=True)
    return [
        TeacherForced(
            torch.cat([one.first, out.logits[n, : len(said) - 1]]).float(),
            torch.stack([layer[n, : len(said) - 1] for layer in out.hidden_states]).float(),
        )
        for n, (one, said) in enumerate(zip(prompts, tokens, strict=True))
    ]
