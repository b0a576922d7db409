"""What every way to hold pairs can do: dense, ragged or quantised."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor

if TYPE_CHECKING:
    from foveate.core.storage import DensePairs, RaggedPairs


class Padded(NamedTuple):
    """A transient view of all slots, right-aligned; ``columns`` is -1 in the empty ones."""

    k: Float[Tensor, "b h n d"]
    v: Float[Tensor, "b h n e"]
    columns: Int[Tensor, "b h n"]


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

    def only(self, kept: Bool[Tensor, "b h n"]) -> Pairs: ...

    def append(self, k: Float[Tensor, "b h t d"], v: Float[Tensor, "b h t e"]) -> None: ...

    def crop(self, count: int) -> bool: ...

    def take_rows(self, rows: Int[Tensor, "r"]) -> None: ...

    def fork(self) -> Pairs: ...

    def tensors(self) -> dict[str, Tensor]: ...
