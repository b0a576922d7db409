"""Continuations of a branch: a greedy answer, or the logits of a given one; for one prompt, or
several at once.

Caches of several prompts, each read and compressed alone, are joined into one whose answers are
decoded together. The rows are aligned as in a batch with left padding: every row's last column is
that of the longest one. Keys keep their rotation, so each new token gets the position that it has
in its own cache.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import DynamicCache, PreTrainedModel

from foveate.cache.pairs import DensePairs, Padded, Pairs, RaggedPairs, store
from foveate.errors import UnsupportedModel, UnsupportedPolicy
from foveate.hf.attach.mrope import AHEAD, ON_ONE_AXIS
from foveate.hf.attach.session import Session
from foveate.hf.layer.cache_layer import is_whole
from foveate.hf.layer.support import (
    compressible_layers,
    convert,
    foveate_layers,
    inner_model,
    known_state,
    text_config,
)
from foveate.hf.measuring.rotation import follows_length
from foveate.hf.model.devices import input_device
from foveate.hf.model.internals import CACHE, DynamicLayer
from foveate.hf.probe.questions import ends
from foveate.policies.policy import Policy
from foveate.policies.protocols import FullPrecision

AXES = 3  # of M-RoPE positions: time, height, width
NEAR = 1e-3  # of the largest logit: far above the rounding of equal computations


class TeacherForced(NamedTuple):
    """The model's predictions for ``m`` given tokens, one after the other.

    ``logits`` [m, vocabulary] predict each token, in float32. ``features`` [layers + 1, m - 1,
    hidden] are the hidden states at all tokens but the last.
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
    """Read the rest of the prompt; return the logits of the answer's first token."""
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
    """Decode the answer's tokens greedily, up to and including an end token, or until ``goes_on``
    returns False.
    """
    stop, answer = ends(model), [int(first.argmax(-1))]
    while answer[-1] not in stop and len(answer) < longest and goes_on(answer):
        fed = torch.tensor([answer[-1:]], dtype=torch.long, device=first.device)
        logits = model(input_ids=fed, **{CACHE: cache}).logits[:, -1]
        answer.append(int(logits.argmax(-1)))
    return answer


def teacher_forced(
    session: Session, cache: DynamicCache, first: Float[Tensor, "1 v"], tokens: Sequence[int]
) -> TeacherForced:
    """Predict given tokens: all at once, or one by one if the policy compresses while decoding."""
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
    session: Session,
    prompts: Sequence[PrefilledPrompt],
    longest: int,
    rest: Int[Tensor, "1 r"] | None = None,
) -> list[list[int]]:
    """Decode an answer for each prompt, like :func:`greedy`, after ``rest``, which is the end of
    all prompts. The prompts' caches are not changed. A row that has ended leaves the batch.
    """
    if not prompts:
        return []
    cache, stop = join(session, [prompt.cache for prompt in prompts]), ends(session.model)
    logits = torch.cat([prompt.first for prompt in prompts])
    if rest is not None and rest.shape[1]:
        inputs = next_inputs(cache, rest.expand(len(prompts), -1))
        logits = session.model(**inputs).logits[:, -1]
    answers: list[list[int]] = [[] for _ in prompts]
    batch = answers
    while True:
        new = logits.argmax(-1)
        for answer, token in zip(batch, new.tolist(), strict=True):
            answer.append(token)
        going = [n for n, own in enumerate(batch) if own[-1] not in stop and len(own) < longest]
        if not going:
            return answers
        if len(going) < len(batch):
            cache.batch_select_indices(rows := new.new_tensor(going))
            batch, new = [batch[n] for n in going], new[rows]
        logits = session.model(**next_inputs(cache, new[:, None])).logits[:, -1]


@torch.no_grad()
def teacher_forced_together(
    session: Session, prompts: Sequence[PrefilledPrompt], tokens: Sequence[Sequence[int]]
) -> list[TeacherForced]:
    """Predict the tokens of each prompt at once, like :func:`teacher_forced`."""
    longest = max(map(len, tokens), default=1) - 1
    if longest == 0:
        empty = [prompt.first.new_zeros(1, 0, 1).float() for prompt in prompts]
        return [
            TeacherForced(prompt.first.float(), x) for prompt, x in zip(prompts, empty, strict=True)
        ]
    fed = [[*answer[:-1], *[answer[-1]] * (longest + 1 - len(answer))] for answer in tokens]
    cache = join(session, [prompt.cache for prompt in prompts])
    device = prompts[0].first.device
    inputs = next_inputs(cache, torch.tensor(fed, dtype=torch.int64, device=device))
    out = session.model(**inputs, output_hidden_states=True)
    return [
        TeacherForced(
            torch.cat([prompt.first, out.logits[n, : len(answer) - 1]]).float(),
            torch.stack([layer[n, : len(answer) - 1] for layer in out.hidden_states]).float(),
        )
        for n, (prompt, answer) in enumerate(zip(prompts, tokens, strict=True))
    ]


# Caches of several prompts as one


def can_join(policy: Policy) -> bool:
    """Return True if a policy's kept pairs stay unchanged while decoding, in full precision."""
    return not policy.when.decodes and isinstance(policy.store, FullPrecision)


def check_joins(model: nn.Module) -> None:
    """Raise UnsupportedModel if an answer would depend on the other prompts of a batch, or if a
    layer stores something other than the pairs of all tokens.
    """
    inner: Any = inner_model(model)
    config, reason = text_config(inner), ""
    layers = DynamicCache(config=config).layers
    if len(compressible_layers(config)) < len(layers) or {*map(type, layers)} != {DynamicLayer}:
        kinds = sorted({type(layer).__name__ for layer in layers})
        reason = f"some of its layers store more, or less, than the pairs of all tokens ({kinds})"
    elif kind := follows_length(config):
        reason = f"its frequencies follow the length of the longest prompt ({kind})"
    elif "position_ids" not in inspect.signature(type(inner).forward).parameters:
        reason = "it does not take position_ids"
    if reason:
        raise _refused(inner, reason)


@torch.no_grad()
def check_places(session: Session, cache: DynamicCache, token: Int[Tensor, "1"]) -> None:
    """Raise UnsupportedModel if a token's logits with explicit ``position_ids`` differ from those
    that the model computes by itself: some models count positions in their own way.
    """
    inputs = next_inputs(join(session, [cache]), token[:, None])
    # no row is padded, and a mask may select a kernel that rounds differently
    del inputs["attention_mask"]
    by_itself = session.model(input_ids=token[:, None], **{CACHE: session.fork(cache)}).logits
    try:
        placed = session.model(**inputs).logits
    except (TypeError, ValueError) as error:
        raise _refused(session.model, f"it rejects these position_ids ({error})") from error
    if not bool((placed - by_itself).abs().max() <= NEAR * by_itself.abs().max()):
        raise _refused(session.model, "it computes other positions than those passed to it")


def _refused(model: nn.Module, why: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"answers of {type(model).__name__} cannot be decoded together: {why}. Decode one prompt "
        "at a time."
    )


def join(session: Session, caches: Sequence[DynamicCache]) -> DynamicCache:
    """Join the rows of all ``caches`` into one, for :func:`next_inputs`. Each has one finished
    prompt under the session's policy, and is not changed.

    Raises:
        UnsupportedPolicy: the policy compresses while decoding, or stores pairs in its own format.
        UnsupportedModel: see :func:`check_joins`.
    """
    if not can_join(session.policy):
        raise UnsupportedPolicy(
            f"answers under {session.policy} cannot be decoded together: it compresses while "
            "decoding, or stores pairs in less than full precision. Decode one at a time."
        )
    check_joins(session.model)
    cache = DynamicCache(config=session.model.config)
    state = convert(cache, text_config(session.model), session.policy, session.link)
    rows = [foveate_layers(own) for own in caches]
    longest = max(layers[0].seen for layers in rows)
    pads = [longest - layers[0].seen for layers in rows]
    for layer, of_rows in zip(foveate_layers(cache), zip(*rows, strict=True), strict=True):
        layer.refill(_stacked([row.pairs for row in of_rows], pads, longest), longest, longest)
    state.update_turn(awaiting=False)
    padding = torch.tensor(pads, dtype=torch.int64, device=input_device(session.model))
    state.update_tokens(pad=padding)
    all_extras = [known_state(own).tokens.extras for own in caches]
    for name in (AHEAD, ON_ONE_AXIS):
        if all(name in extras for extras in all_extras):
            ahead = torch.cat([extras[name] for extras in all_extras])
            state.note({name: ahead.to(padding.device) - padding[:, None]})
    return cache


def next_inputs(cache: DynamicCache, tokens: Int[Tensor, "b t"]) -> dict[str, Any]:
    """Return the model's inputs for the next tokens of all rows. Rows with fewer tokens may be
    padded on the right with any tokens.
    """
    state, seen = known_state(cache), foveate_layers(cache)[0].seen
    columns = torch.arange(seen + tokens.shape[1], device=tokens.device)
    pads = state.tokens.padding(tokens)[:, None]
    positions = columns[seen:] + state.tokens.extras.get(
        AHEAD, state.tokens.extras.get(ON_ONE_AXIS, -pads)
    )
    if AHEAD in state.tokens.extras:
        positions = positions.expand(AXES, -1, -1)
    mask = (columns >= pads).long()
    return {"input_ids": tokens, "attention_mask": mask, "position_ids": positions, CACHE: cache}


def _stacked(rows: Sequence[Pairs], pads: Sequence[int], longest: int) -> DensePairs | RaggedPairs:
    """Stack pairs of one row each into those of a batch; uncompressed pairs get padding in
    front.
    """
    k, v, columns = _side_by_side([row.padded() for row in rows])
    if all(map(is_whole, rows)):
        return DensePairs(k, v)
    kept = columns >= 0
    moved = columns + columns.new_tensor(pads)[:, None, None]
    return store(k, v, moved, kept, longest)


def _side_by_side(rows: Sequence[Padded]) -> Padded:
    """Stack padded pairs of one row each, right-aligned."""
    longest = max(row.columns.shape[2] for row in rows)
    front = [longest - row.columns.shape[2] for row in rows]
    return Padded(
        torch.cat([pad(row.k, (0, 0, n, 0)) for row, n in zip(rows, front, strict=True)]),
        torch.cat([pad(row.v, (0, 0, n, 0)) for row, n in zip(rows, front, strict=True)]),
        torch.cat([pad(row.columns, (n, 0), value=-1) for row, n in zip(rows, front, strict=True)]),
    )
