"""Pairs in full precision, from the tensors that they were saved as."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from foveate.core.storage.dense import DensePairs
from foveate.core.storage.ragged import RaggedPairs

EXACT = ("k", "v", "columns", "flat_k", "flat_v", "counts")
"""What :class:`DensePairs` and :class:`RaggedPairs` call their tensors."""


def exact(tensors: Mapping[str, Tensor], first: int) -> DensePairs | RaggedPairs:
    """The pairs that have these ``tensors()``, and maybe others; ``first`` is the first column that
    is not listed.
    """
    if "flat_k" not in tensors:
        return DensePairs(tensors["k"], tensors["v"], tensors.get("columns"), first)
    k, v, columns, counts = (tensors[name] for name in ("flat_k", "flat_v", "columns", "counts"))
    ragged = RaggedPairs(k, v, columns, counts, first)
    if tensors["k"].shape[2]:
        ragged.append(tensors["k"], tensors["v"])
    return ragged
