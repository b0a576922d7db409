"""What every way to hold pairs can do: dense, ragged or quantised."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.cache.pairs.dense import DensePairs, Padded
from foveate.cache.pairs.ragged import RaggedPairs

P = TypeVar("P")


@runtime_checkable
class Pairs(Protocol):
    """One layer's pairs, which know the original column of each."""

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
        """The same in full precision: transient where that is not what is held."""
        ...

    def padded(self) -> Padded: ...

    def append(self, k: Float[Tensor, "b h t d"], v: Float[Tensor, "b h t e"]) -> None: ...

    def crop(self, count: int) -> bool: ...

    def take_rows(self, rows: Int[Tensor, "r"]) -> None: ...

    def fork(self: P) -> P: ...

    def tensors(self) -> dict[str, Tensor]: ...


@runtime_checkable
class Roomy(Pairs, Protocol):
    """Pairs that can be told how many more may come, so that no room is made for others."""

    def bound(self, more: int) -> None: ...


@runtime_checkable
class Coded(Pairs, Protocol):
    """Pairs that are held as codes, which stay as they are where some of them go."""

    def only(self, kept: Bool[Tensor, "b h n"]) -> Pairs:
        """A copy that holds the kept slots."""
        ...


@runtime_checkable
class Renumbered(Pairs, Protocol):
    """Pairs whose columns can be counted anew, once some are held by nobody."""

    def renumber(self, table: Int[Tensor, "c"]) -> None: ...


Exact = DensePairs | RaggedPairs
"""Pairs in full precision."""


class Counted(Protocol):
    """Pairs that can be counted per row and KV head."""

    @property
    def counts(self) -> Int[Tensor, "b h"]: ...


Others = TypeVar("Others", bound=Renumbered)


class BodyAndRest(Generic[Others]):
    """Pairs of which a ``body`` is held in a form of its own, and all others (``rest``) in another
    one, to which those that come later are added.
    """

    body: Counted
    rest: Others

    @property
    def counts(self) -> Int[Tensor, "b h"]:
        """Pairs held per row and KV head."""
        return self.body.counts + self.rest.counts

    @property
    def longest(self) -> int:
        """The most pairs that one head holds."""
        return int(self.counts.max())

    @property
    def compressed(self) -> bool:
        """Always True: they are not what the model wrote."""
        return True

    @property
    def first(self) -> int:
        """The column of the first pair of the rest that is not listed."""
        return self.rest.first

    def append(self, k: Float[Tensor, "b h t d"], v: Float[Tensor, "b h t e"]) -> None:
        """Add the next columns."""
        self.rest.append(k, v)

    def crop(self, count: int) -> bool:
        """Take back the newest ``count`` columns; False if they are not in the rest."""
        return self.rest.crop(count)
