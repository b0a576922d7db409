"""Base classes of scores: the queries that they read, and the profile that they use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from foveate.cache.layer import Layer
from foveate.errors import InvalidInput
from foveate.policies.protocols import Score
from foveate.profiles.tensor_profile import TensorProfile, load_tensors


class WithoutQueries:
    """Score that reads no query."""

    def queries(self, tokens: int) -> int:
        return 0


@dataclass(frozen=True, kw_only=True)
class Wrapper:
    """Score that wraps another one, and reads the same queries."""

    of: Score

    def queries(self, tokens: int) -> int:
        return self.of.queries(tokens)


@dataclass(frozen=True, kw_only=True)
class ByProfile(WithoutQueries):
    """Score from the tensors of a ``profile``, a file of the method ``method``."""

    method: ClassVar[str]
    profile: str

    def __post_init__(self) -> None:
        _ = self.calibrated

    @property
    def calibrated(self) -> TensorProfile:
        """Profile in use."""
        return load_tensors(self.profile, self.method)


def hidden_states(layer: Layer) -> Float[Tensor, "b t c"]:
    """Return what the attention module reads at the layer's queries, or at all tokens.

    Raises:
        InvalidInput: the layer has no hidden states.
    """
    if layer.hidden is None:
        raise InvalidInput(
            f"layer {layer.number} has no hidden states, which this policy reads. Pass "
            "hidden_states= to compress_tensors(): one [b, n, hidden] tensor per layer."
        )
    return layer.hidden
