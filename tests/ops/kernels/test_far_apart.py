"""Elements that stand more than 2^31 apart: every kernel counts in 64 bits.

The tensors are views of a sparse file, of which only what is touched takes room. Strides fit in 32
bits, and index times stride does not; an offset that wrapped around would end up at the file's
beginning, which holds zeros.
"""

import pytest
import torch

from foveate.ops.column_sums import (
    attention_with_counted_sums,
    attention_with_sums,
    column_sums,
)
from foveate.ops.compaction import compaction
from foveate.ops.mix_statistics import mix_statistics
from foveate.ops.nearest import nearest_by_cosine
from foveate.ops.ragged_decode import ragged_decode
from foveate.ops.window_attention import window_attention
from tests.on_device import DEVICE

from .inputs import Draw

FAR = 2**30
SHAPES = {"row": (3, 1, 2, 16), "head": (1, 3, 2, 16), "slot": (1, 1, 3, 16)}


def kept(k):
    return torch.ones(k.shape[:3], dtype=torch.bool, device=DEVICE)


def compacted(k, v):
    columns = torch.arange(k.shape[2], device=DEVICE).expand(k.shape[:3])
    return compaction(k, v, columns, kept(k), kept(k).sum(-1), impl="triton")


def decoded(q, k, v):
    """With the pairs as the tail; for one row and head, as the body too."""
    b, h = k.shape[:2]
    body = (
        (k[0, 0], v[0, 0], [k.shape[2]]) if b * h == 1 else (k[0, 0, :0], v[0, 0, :0], [0] * b * h)
    )
    return (ragged_decode(q[:, :, :1], *body, k, v, 0.5, impl="triton"),)


OPERATORS = {
    "column_sums": lambda q, k, v: (column_sums(q, k, 0.5, impl="triton"),),
    "attention_with_sums": lambda q, k, v: attention_with_sums(q, k, v, 0.5, impl="triton"),
    "attention_with_counted_sums": lambda q, k, v: attention_with_counted_sums(
        q, k, v, torch.ones(len(q), 1, 1, q.shape[2], device=DEVICE), 0.5, impl="triton"
    ),
    "window_attention": lambda q, k, v: (
        window_attention(
            q, k, kept(k)[:, :, None].expand(-1, -1, q.shape[2], -1), 0.5, impl="triton"
        ),
    ),
    "ragged_decode": decoded,
    "mix_statistics": lambda q, k, v: mix_statistics(k, v, kept(k), impl="triton"),
    "compaction": lambda q, k, v: compacted(k, v),
    "nearest_by_cosine": lambda q, k, v: nearest_by_cosine(k, kept(k), impl="triton"),
}


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    """2^32 numbers and a few: on a CPU most of them in no memory, on a GPU in 8 GiB."""
    if DEVICE.type != "cpu":
        return torch.zeros(4 * FAR + 4096, dtype=torch.float16, device=DEVICE)
    path = tmp_path_factory.mktemp("sparse") / "room"
    return torch.from_file(str(path), shared=True, size=4 * FAR + 4096, dtype=torch.float16)


def spread(room, x, at):
    """The same numbers with the elements of the only large axis ``FAR`` apart."""
    strides = [
        FAR if size == 3 else 64 * (i == 1) + 32 * (i == 2) for i, size in enumerate(x.shape)
    ]
    view = room.as_strided(x.shape, [*strides[:3], 1], 2 * FAR + at)
    return view.copy_(x)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS.keys())
def test_offsets_beyond_32_bits_reach_their_elements(room, operator, shape):
    near = [Draw(torch.float16, seed).normal(*shape) for seed in range(3)]
    far = [spread(room, x, 512 * i) for i, x in enumerate(near)]
    for x, y in zip(operator(*far), operator(*near), strict=True):
        assert torch.equal(x, y)
