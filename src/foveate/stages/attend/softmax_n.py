"""Softmax-n in the attention over what is kept."""

from __future__ import annotations

from dataclasses import dataclass

from foveate.core.errors import InvalidParameter
from foveate.core.spec import stage


@stage("softmax_n")
@dataclass(frozen=True, kw_only=True)
class SoftmaxN:
    """exp(x_i) / (n + sum_j exp(x_j)) in the attention over a compressed layer, for any n >= 0.

    The same as one more pair, with the logit log n and a value of zeros.

    Source: CSP (arXiv:2412.04652), eq. 7.
    """

    n: float = 1.0

    def __post_init__(self) -> None:
        check_n(self.n)


def check_n(n: float) -> None:
    """Raises InvalidParameter unless n is a finite number of at least zero."""
    if not 0 <= n < float("inf"):
        raise InvalidParameter(f"n={n}: give a number of at least 0; 0 is the softmax.")
