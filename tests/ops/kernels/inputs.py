"""Tensors whose neighbours in memory are NaN, laid out in several ways."""

import torch

from foveate.ops.kernels.launch import rows
from tests.on_device import DEVICE

# every type, and head sizes that are powers of two and that are not
KINDS = [
    (torch.float32, 64),
    (torch.float32, 80),
    (torch.float32, 96),
    (torch.float32, 128),
    (torch.float32, 256),
    (torch.float16, 80),
    (torch.bfloat16, 80),
    (torch.bfloat16, 128),
]


def lengths(dtype, d):
    """Queries, fewer than a block of this type and width has, and slots, a few more than a block:
    the interpreter takes as long as there are blocks.
    """
    block = rows(torch.empty(0, d, dtype=dtype))
    return block // 2 + 5, block + 7


class Draw:
    """Normal numbers from one seed."""

    def __init__(self, dtype=torch.float32, seed=0):
        self.dtype, self.generator = dtype, torch.Generator().manual_seed(seed)

    def normal(self, *shape):
        return torch.randn(shape, generator=self.generator).to(DEVICE, self.dtype)

    def chance(self, share, *shape):
        return torch.rand(shape, generator=self.generator).to(DEVICE) < share

    def tokens_first(self, b, h, n, d):
        """[b, h, n, d], held as a model's projection makes it, inside of something larger."""
        return self._inside(b, n, h, d).transpose(1, 2)

    def channels_first(self, b, h, n, d):
        """[b, h, n, d], neighbours in a head far apart."""
        return self._inside(b, h, d, n).transpose(2, 3)

    def _inside(self, a, b, c, d):
        around = torch.full((a, b + 3, c, d + 5), torch.nan, dtype=self.dtype, device=DEVICE)
        view = around[:, 1 : b + 1, :, 2 : d + 2]
        view.copy_(self.normal(a, b, c, d))
        return view
