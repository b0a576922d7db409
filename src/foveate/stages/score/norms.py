"""Norms of keys and values: scores that need no attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from foveate.core.layer import Layer, Scores
from foveate.core.spec import stage


@stage("key_norm")
@dataclass(frozen=True, kw_only=True)
class KeyNorm:
    """Minus the L2 norm of the key, in float32: low norms attract attention.

    Source: Devoto et al. (arXiv:2406.11430), section 3.
    """

    head_by_head: ClassVar[bool] = True

    def queries(self, tokens: int) -> int:
        return 0

    def __call__(self, layer: Layer) -> Scores:
        return Scores(-layer.k.float().norm(dim=-1))


@stage("value_norm")
@dataclass(frozen=True, kw_only=True)
class ValueNorm:
    """The L2 norm of the value, in float32: what a token would contribute.

    Source: InfiniPot-V (arXiv:2506.15745), the VaN score.
    """

    head_by_head: ClassVar[bool] = True

    def queries(self, tokens: int) -> int:
        return 0

    def __call__(self, layer: Layer) -> Scores:
        return Scores(layer.v.float().norm(dim=-1))
