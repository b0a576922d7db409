"""A prompt that is read in chunks: under a policy, by the stock model, and with no cache at all."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import DynamicCache

from foveate.hf import compress
from foveate.hf.model.internals import CACHE
from foveate.policies.policy import Policy
from foveate_lab.bench.subject import Subject
from foveate_lab.bench.timing import FilledCache


def chunks(subject: Subject, chunk: int) -> Iterator[Int[Tensor, "b c"]]:
    """The prompt's tokens, so many at a time."""
    return iter(torch.split(subject.ids, chunk, dim=1))


@torch.no_grad()
def read(subject: Subject, policy: Policy, chunk: int) -> FilledCache:
    """The prompt's cache under a policy."""
    with compress(subject.model, policy) as session:
        session.expect(subject.ids.shape[1])
        cache = DynamicCache(config=subject.model.config)
        for some in chunks(subject, chunk):
            subject.model(input_ids=some, **{CACHE: cache}, logits_to_keep=1)
        return FilledCache(policy, cache, session.stats)


@torch.no_grad()
def stock(subject: Subject, chunk: int) -> DynamicCache:
    """The stock cache of the prompt."""
    cache = DynamicCache(config=subject.model.config)
    for some in chunks(subject, chunk):
        subject.model(input_ids=some, **{CACHE: cache}, logits_to_keep=1)
    return cache


@torch.no_grad()
def without_cache(subject: Subject, chunk: int) -> None:
    """Every chunk by itself: what a forward of that size takes, whatever is cached."""
    for some in chunks(subject, chunk):
        subject.model(input_ids=some, use_cache=False, logits_to_keep=1)
