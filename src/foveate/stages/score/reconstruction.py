"""KVzip's score: what the model attends to as it reads its prompt a second time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from foveate.core.layer import Layer, Scores
from foveate.core.parameters import Positive
from foveate.core.spec import stage
from foveate.stages.score.rows import rows

NOTED = "reconstruction"


@stage("reconstruction")
@dataclass(frozen=True, kw_only=True)
class Reconstruction:
    """The most attention that a token of the second reading pays to each slot, over its query heads
    and tokens, of a softmax over the prompt and the piece itself; at most ``chunk`` tokens are read
    at a time.

    Source: KVzip (arXiv:2505.23416), section 3.2 and 3.3, eq. 2.
    """

    head_by_head: ClassVar[bool] = True
    chunk: Positive = 2048

    def queries(self, tokens: int) -> int:
        return 0

    def again(self, layer: Layer) -> Mapping[str, Tensor]:
        """The maxima over one more piece."""
        prompt = layer.k.shape[2] - layer.q.shape[2]
        most = reduce(torch.maximum, (_most(paid, prompt) for _, paid in rows(layer)))
        if NOTED in layer.state:
            most = torch.maximum(most, layer.state[NOTED])
        return {NOTED: most}

    def __call__(self, layer: Layer) -> Scores:
        return Scores(layer.state[NOTED])


def _most(paid: Float[Tensor, "b h g r s"], prompt: int) -> Float[Tensor, "b h n"]:
    return paid[..., :prompt].amax((2, 3))
