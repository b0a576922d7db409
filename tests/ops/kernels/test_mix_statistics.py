"""Norms, diversity and redundancy, part by part."""

import pytest
import torch
from torch.testing import assert_close

from foveate.ops.kernels import mix_statistics as triton
from foveate.ops.mix_statistics import mix_statistics
from tests.on_device import DEVICE

from .inputs import KINDS, Draw

MANY = 700 if DEVICE.type == "cuda" else 90  # slots of more than a part


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    """The interpreter takes as long as there are slots: here few of them make several parts."""
    if DEVICE.type == "cpu":
        monkeypatch.setattr(triton, "PART", 64)


@pytest.mark.parametrize("n", [1, MANY])
@pytest.mark.parametrize(("dtype", "d"), KINDS, ids=str)
def test_statistics_are_the_references_for_every_type_and_head_size(dtype, d, n):
    draw = Draw(dtype)
    k, v = draw.tokens_first(2, 2, n, d), draw.channels_first(2, 2, n, d // 2)
    k[:, :, -1] = 0.0  # a key of zeros has no direction
    slots, first = torch.arange(n, device=DEVICE), torch.tensor([0, n // 3], device=DEVICE)
    valid = (slots >= first[:, None])[:, None].expand(2, 2, n)
    for some in (valid, None):
        ours = mix_statistics(k, v, some, impl="triton")
        for name, x, y in zip(ours._fields, ours, mix_statistics(k, v, some), strict=True):
            assert_close(x, y, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")
