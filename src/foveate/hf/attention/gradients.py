"""Gradients: right where a pass sees everything that was read, refused by name where it does not.

A training step reads its whole input in one pass, over the keys and values as they are made, and
what is kept of them afterwards has no part in its loss. What comes after a compression would lack
the gradients of the pairs that are gone, and of those held, which are copies.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from foveate.errors import UnsupportedCache


class _Refused(torch.autograd.Function):
    """The same tensor, through which nothing flows back."""

    @staticmethod
    def forward(ctx: Any, out: Tensor) -> Tensor:
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise UnsupportedCache(
            "gradients do not flow through a compressed cache: this pass attended to what was kept "
            "of an earlier one. Read the whole input in one pass, or compute the loss outside of "
            "the compress() block."
        )


def refused(out: Tensor) -> Tensor:
    """The output of an attention over compressed pairs, for use without gradients alone. Decoding
    by hand often forgets ``torch.no_grad()``, so only a backward pass raises.
    """
    if not (torch.is_grad_enabled() and out.requires_grad):
        return out
    marked: Tensor = _Refused.apply(out)  # type: ignore[no-untyped-call]
    return marked
