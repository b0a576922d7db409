"""Protocols of stored pairs, whether dense, ragged or quantised, and their common base."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.cache.pairs.dense import DensePairs, Padded
from foveate.cache.pairs.ragged import RaggedPairs

P = TypeVar("P")


@runtime_checkable
class Pairs(Protocol):
    """One layer's stored pairs and their original columns."""

    @property
    def counts(self) -> Int[Tensor, "b h"]: ...

    @property
    def longest(self) -> int: ...

    @property
    def compressed(self) -> bool: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def columns(self) -> Int[Tensor, "b h n"]: ...

    @property
    def first(self) -> int: ...

    def opened(self) -> DensePairs | RaggedPairs:
        """Return the pairs in full precision; a temporary copy if they are stored otherwise."""
        ...

    def padded(self) -> Padded: ...

    def append(self, k: Float[Tensor, "b h t d"], v: Float[Tensor, "b h t e"]) -> None: ...

    def crop(self, count: int) -> bool: ...

    def take_rows(self, rows: Int[Tensor, "r"]) -> None: ...

    def fork(self: P) -> P: ...

    def tensors(self) -> dict[str, Tensor]: ...


@runtime_checkable
class Roomy(Pairs, Protocol):
    """Pairs whose spare room can be limited to a number of later pairs."""

    def bound(self, more: int) -> None: ...


@runtime_checkable
class Coded(Pairs, Protocol):
    """Pairs stored as codes, which do not change if some of them are removed."""

    def only(self, kept: Bool[Tensor, "b h n"]) -> Pairs:
        """Return a copy with the kept slots only."""
        ...


@runtime_checkable
class Renumbered(Pairs, Protocol):
    """Pairs whose columns can be renumbered once some columns are stored nowhere."""

    def renumber(self, table: Int[Tensor, "c"]) -> None: ...


Exact = DensePairs | RaggedPairs
"""Pairs in full precision."""


class Counted(Protocol):
    """Pairs that can be counted per row and KV head."""

    @property
    def counts(self) -> Int[Tensor, "b h"]: ...


Others = TypeVar("Others", bound=Renumbered)


class BodyAndRest(Generic[Others]):
    """Pairs in two forms: a ``body`` in a form of its own, and all others (``rest``).

    Later pairs are added to the rest.
    """

    body: Counted
    rest: Others

    @property
    def counts(self) -> Int[Tensor, "b h"]:
        """Pairs stored per row and KV head."""
        return self.body.counts + self.rest.counts

    @property
    def longest(self) -> int:
        """Largest number of pairs of a head."""
        return int(self.counts.max())

    @property
    def compressed(self) -> bool:
        """True: the pairs are not what the model computed."""
        return True

    @property
    def first(self) -> int:
        """The column of the rest's first pair whose column is not listed."""
        return self.rest.first

    def append(self, k: Float[Tensor, "b h t d"], v: Float[Tensor, "b h t e"]) -> None:
        """Add the next columns."""
        self.rest.append(k, v)

    def crop(self, count: int) -> bool:
        """Remove the newest ``count`` columns; False if they are not in the rest."""
        return self.rest.crop(count)
