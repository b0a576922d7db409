"""Where tests run that can run on a GPU.

    FOVEATE_TESTS_DEVICE=cuda TRITON_INTERPRET=0 python -m pytest tests/ops/kernels

Test code says where its tensors are, and sets no default device: that would hide tensors of the
library that are made in the wrong place.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

DEVICE = torch.device(os.environ.get("FOVEATE_TESTS_DEVICE", "cpu"))


def moved(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A model's inputs, where the tests run."""
    return {name: tensor.to(DEVICE) for name, tensor in inputs.items()}


@cache
def there(family: str) -> Any:
    """The tiny model of a family where the tests run; that of `zoo.build` on a CPU."""
    from tests import zoo

    return zoo.build(family) if DEVICE.type == "cpu" else zoo.fresh(family).to(DEVICE)
