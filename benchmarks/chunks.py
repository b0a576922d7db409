"""Prompts prefilled in chunks: under a policy, by the stock model, and without a cache."""

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
    """Iterate over the prompt's tokens, ``chunk`` at a time."""
    return iter(torch.split(subject.ids, chunk, dim=1))


@torch.no_grad()
def read(subject: Subject, policy: Policy, chunk: int) -> FilledCache:
    """Prefill the prompt under a policy and return its cache."""
    with compress(subject.model, policy) as session:
        session.expect(subject.ids.shape[1])
        cache = DynamicCache(config=subject.model.config)
        for ids in chunks(subject, chunk):
            subject.model(input_ids=ids, **{CACHE: cache}, logits_to_keep=1)
        return FilledCache(policy, cache, session.stats)


@torch.no_grad()
def stock(subject: Subject, chunk: int) -> DynamicCache:
    """Prefill the prompt into the stock cache."""
    cache = DynamicCache(config=subject.model.config)
    for ids in chunks(subject, chunk):
        subject.model(input_ids=ids, **{CACHE: cache}, logits_to_keep=1)
    return cache


@torch.no_grad()
def without_cache(subject: Subject, chunk: int) -> None:
    """Run every chunk by itself, which measures the memory of a forward pass without a cache."""
    for ids in chunks(subject, chunk):
        subject.model(input_ids=ids, use_cache=False, logits_to_keep=1)
