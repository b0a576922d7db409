"""Softmax-n in the attention over what is kept."""

from __future__ import annotations

from dataclasses import dataclass

from foveate.core.parameters import Factor
from foveate.core.spec import stage


@stage("softmax_n")
@dataclass(frozen=True, kw_only=True)
class SoftmaxN:
    """exp(x_i) / (n + sum_j exp(x_j)) in the attention over a compressed layer, for any n >= 0.

    The same as one more pair, with the logit log n and a value of zeros.

    Source: CSP (arXiv:2412.04652), eq. 7.
    """

    n: Factor = 1.0
