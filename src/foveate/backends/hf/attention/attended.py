"""What an attention returns: its output, and what it made on the way for the policy's score."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from foveate.core.layer import WindowSums, WindowWeights

Output = tuple[Tensor, Tensor | None]
"""As transformers' attention functions return it: [b, m, hq, e], and weights or None."""

Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None], Output]
"""The model's own attention of queries, keys and values under a mask."""


class Attended(NamedTuple):
    """The output [b, m, hq, e], the model's attention weights if it gives any, and by-products."""

    output: Float[Tensor, "b m hq e"]
    weights: Tensor | None = None
    column_sums: Float[Tensor, "b hq n"] | None = None
    window_sums: WindowSums | None = None


class Wanted(NamedTuple):
    """The by-products that a pass is to make: at most one kind."""

    column_sums: bool = False
    window: WindowWeights | None = None


NOTHING = Wanted()
