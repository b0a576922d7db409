"""Process-wide defaults of PyTorch, as a program around the library may have left them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# On "meta" a tensor has no numbers: whatever is made there by mistake fails where it is read.
DEFAULTS: dict[str, Any] = {
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "meta": "meta",
}


@contextmanager
def default(name: str) -> Iterator[None]:
    """Inside, tensors are of that type, or on that device, where nothing is said."""
    before, value = torch.get_default_dtype(), DEFAULTS[name]
    try:
        if isinstance(value, torch.dtype):
            torch.set_default_dtype(value)
        else:
            torch.set_default_device(value)
        yield
        changed = torch.get_default_dtype(), str(torch.get_default_device())
        assert changed == ((before, value) if value == "meta" else (value, "cpu"))
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(before)


class Untold(TorchDispatchMode):
    """Inside, names the operations whose result has the default type without having been told:
    those of whole numbers and numbers of Python's, such as a quotient.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made, given = func(*args, **(kwargs or {})), tree_leaves((args, kwargs))
        told = (kwargs or {}).get("dtype") or any(
            isinstance(one, torch.Tensor) and one.is_floating_point() for one in given
        )
        if isinstance(made, torch.Tensor) and made.is_floating_point() and not told:
            self.found.add(str(func))
        return made
