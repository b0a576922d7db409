"""Many branches of one prompt go on as one batch: the weights are read once for all of them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from foveate.backends.hf.attach import Session
from foveate.backends.hf.layer import FoveateLayer
from foveate.backends.hf.record import Recording
from foveate.backends.hf.support import convert, foveate_layers, state_of, text_config
from foveate.core.errors import InvalidInput
from foveate.core.pairs import Pairs
from foveate.core.policy import Policy
from foveate.core.protocols import FullPrecision
from foveate.core.storage import RaggedPairs


def joinable(one: Policy, other: Policy) -> bool:
    """True if branches under both policies can go on in one batch: their pairs are held as they
    are, nothing is compressed while decoding, and both attend to them in the same way.
    """
    plain = all(isinstance(p.store, FullPrecision) and not p.when.decodes for p in (one, other))
    return plain and one.attend == other.attend


def together(
    session: Session, recording: Recording, branches: Sequence[DynamicCache]
) -> DynamicCache:
    """One cache whose row i goes on from the i-th branch of a prompt of one row.

    It holds a copy of all pairs, each head its own number of them. The branches' policies, of which
    the session's is one, must be :func:`joinable`.

    Raises:
        InvalidInput: a prompt of several rows, or a branch that has gone on already.
    """
    _check(recording, branches)
    rows = torch.zeros(len(branches), dtype=torch.long)
    cache = DynamicCache(config=session.model.config)
    state = convert(cache, text_config(session.model), session.policy, session.link)
    known = foveate_layers(recording.cache)[0]
    state.follow(known.state)
    state.take_rows(rows)
    layers: list[Any] = list(cache.layers)
    for i, layer in enumerate(layers):
        parts: list[Any] = [one.layers[i] for one in branches]
        if isinstance(layer, FoveateLayer):
            layer.refill(_joined([part.pairs for part in parts], known.seen),
                         known.seen, known.seen)  # fmt: skip
        else:  # what is not compressed is the same in all branches
            layers[i] = copy.deepcopy(parts[0])
            layers[i].batch_repeat_interleave(len(branches))
    cache.layers = layers
    return cache


def _check(recording: Recording, branches: Sequence[DynamicCache]) -> None:
    known = foveate_layers(recording.cache)[0]
    if known.pairs.counts.shape[0] != 1:
        raise InvalidInput(
            f"branches of a prompt of {known.pairs.counts.shape[0]} rows cannot go on together. "
            "Record one row."
        )
    for one in branches:
        if state_of(one) is None or foveate_layers(one)[0].seen != known.seen:
            raise InvalidInput(
                "a cache that is no branch of this recording, or has seen tokens after it, cannot "
                "go on together with others. Join branches right after branch()."
            )


def _joined(branches: Sequence[Pairs], first: int) -> RaggedPairs:
    """All branches' pairs, one after the other; ``first`` is the next token's column."""
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    for pairs in branches:
        k, v, columns = pairs.padded()
        held = columns >= 0
        found.append((k[held], v[held], columns[held]))
    k, v, columns = (torch.cat(parts) for parts in zip(*found, strict=True))
    return RaggedPairs(k, v, columns, torch.cat([pairs.counts for pairs in branches]), first)
