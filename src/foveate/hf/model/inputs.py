"""Keyword arguments of a model's forward pass."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable

from torch import nn
from transformers.utils.generic import TransformersKwargs

from foveate.errors import InvalidParameter

_OTHERS = {"return_dict", "token_type_ids", "mm_token_type_ids"}
"""An argument of every model, and outputs of processors that some models have no use for."""


def check_inputs(model: nn.Module, names: Iterable[str]) -> None:
    """Refuse arguments that no module of a model reads: its forward would ignore them silently.

    Raises:
        InvalidParameter: there is one; the message names the closest argument.
    """
    known = {*TransformersKwargs.__annotations__, *_OTHERS}
    for kind in {type(module) for module in model.modules()}:
        known |= {*inspect.signature(kind.forward).parameters}
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, sorted(known), n=1)
            way_out = f"Did you mean {close[0]}=?" if close else "Leave it out."
            raise InvalidParameter(
                f"{name}= is read by no part of {type(model).__name__}, which would ignore it. "
                f"{way_out}"
            )
