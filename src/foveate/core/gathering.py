"""What a method adds up over all queries of some prompts, where numbers of each would not do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol, runtime_checkable

from torch import Tensor

from foveate.core.layer import Layer
from foveate.core.protocols import Score
from foveate.core.registry import Registry
from foveate.ops.rotation import Rotation

Sums = Mapping[str, Tensor]


@runtime_checkable
class Gathering(Protocol):
    """How a profile of tensors is measured, layer by layer: sums over the queries of every prompt,
    and what follows from them. It is told how the model turns queries by their positions if it
    ``turns_back``, for which prompts have to be texts. With a ``watched`` score it sees each layer
    when that score has been made (after a second reading), and its state.
    """

    turns_back: ClassVar[bool]
    watched: ClassVar[Score | None]
    names: ClassVar[tuple[str, ...]]

    def gather(self, layer: Layer, rotation: Rotation | None) -> Sums:
        """The sums over one pass; those of other passes and prompts are added."""
        ...

    def finish(self, sums: Sums, rotation: Rotation | None) -> Mapping[str, Tensor]:
        """The profile's tensors of a layer, by their ``names``."""
        ...


GATHERINGS: Registry[Gathering] = Registry()
