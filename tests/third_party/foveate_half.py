"""A package of someone else: a score, and a store, that Foveate does not have.

Needs what docs/stability.md calls public, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from foveate.cache.layer import Layer, Scores
from foveate.cache.pairs import DensePairs, Padded, Pairs, RaggedPairs, exact, exact_bytes, store
from foveate.policies.amount import Amount
from foveate.policies.method import method
from foveate.policies.policy import Policy
from foveate.policies.protocols import Held
from foveate.policies.spec import stage
from foveate.stages.budget import Uniform
from foveate.stages.score import Recency
from foveate.stages.select import TopK


@stage("value_spread")
@dataclass(frozen=True, kw_only=True)
class ValueSpread:
    """How far a value's channels lie apart."""

    head_by_head: ClassVar[bool] = True

    def queries(self, tokens: int) -> int:
        return 0

    def __call__(self, layer: Layer) -> Scores:
        return Scores(layer.v.float().std(dim=-1))


class HalfPairs:
    """Pairs whose numbers are held in float16, and read in their own type."""

    compressed = True

    def __init__(self, held: DensePairs | RaggedPairs, dtype: torch.dtype):
        self.held, self.dtype = held, dtype

    @classmethod
    def of(cls, pairs: Pairs) -> HalfPairs:
        opened = pairs.opened()
        return cls(_as(opened, torch.float16), opened.padded().k.dtype)

    @property
    def counts(self) -> Tensor:
        return self.held.counts

    @property
    def longest(self) -> int:
        return self.held.longest

    @property
    def nbytes(self) -> int:
        return self.held.nbytes

    @property
    def columns(self) -> Tensor:
        return self.held.columns

    @property
    def first(self) -> int:
        return self.held.first

    def opened(self) -> DensePairs | RaggedPairs:
        return _as(self.held, self.dtype)

    def padded(self) -> Padded:
        return self.opened().padded()

    def append(self, k: Tensor, v: Tensor) -> None:
        self.held.append(k.half(), v.half())

    def crop(self, count: int) -> bool:
        return self.held.crop(count)

    def take_rows(self, rows: Tensor) -> None:
        self.held.take_rows(rows)

    def fork(self) -> HalfPairs:
        return HalfPairs(self.held.fork(), self.dtype)

    def tensors(self) -> dict[str, Tensor]:
        like = torch.zeros(1, dtype=self.dtype, device="cpu")  # what they are read in
        return {**self.held.tensors(), "like": like}


def _as(pairs: DensePairs | RaggedPairs, dtype: torch.dtype) -> DensePairs | RaggedPairs:
    k, v, columns = pairs.padded()
    return store(k.to(dtype), v.to(dtype), columns, columns >= 0, pairs.next_column)


@stage("half_store")
@dataclass(frozen=True, kw_only=True)
class HalfStore:
    """Pairs are held in float16."""

    exact: ClassVar[bool] = False

    def __call__(self, pairs: Pairs) -> Pairs:
        return pairs if isinstance(pairs, HalfPairs) else HalfPairs.of(pairs)

    def bytes_of(self, held: Held) -> int:
        return exact_bytes(held.counts, 2 * (held.form.key + held.form.value), held.spare)

    def restored(self, tensors: Mapping[str, Tensor], first: int) -> Pairs:
        return HalfPairs(exact(tensors, first), tensors["like"].dtype)


@method()
def value_spread_kv(*, budget: Amount) -> Policy:
    """Keeps the tokens whose values' channels lie furthest apart."""
    return Policy(score=ValueSpread(), budget=Uniform(amount=budget), select=TopK(recent=4))


@method(adds=("store",))
def half_kv() -> Policy:
    """Holds all pairs in float16; adds to any method."""
    whole = Uniform(amount=Amount.of(1.0))
    return Policy(score=Recency(), budget=whole, select=TopK(), store=HalfStore())
