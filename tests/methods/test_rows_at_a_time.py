"""Scores that read many queries do so some rows at a time: no tensor is as large as all queries by
all slots, which at 128k tokens would be 17 GB of booleans.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import foveate
from benchmarks.layer_work import Heads, anew, drawn, work
from foveate.stages.score.attention_rows import ROWS

TOKENS = 512


class _Largest(TorchDispatchMode):
    """The most elements of any result."""

    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for one in found if isinstance(found, (tuple, list)) else [found]:
            if isinstance(one, torch.Tensor):
                held = one.untyped_storage().nbytes() // one.element_size()  # views count as theirs
                self.most = max(self.most, min(one.numel(), held))
        return found


@pytest.mark.parametrize(
    "spec",
    [
        "aircache:text=all",
        "keyformer",
        "meda",
        "nacl:proxies=0.9",
        "roco",
        "tgv_kv",
        "tova",
        "vl_cache",
    ],
)
def test_no_tensor_is_as_large_as_all_queries_by_all_slots(spec):
    policy = foveate.policy(spec, budget="90%").but(merge="no_merge")  # which has blocks of its own
    layer = drawn(policy, TOKENS, Heads(1, 1, 8), torch.device("cpu"), queries=TOKENS)
    with torch.no_grad(), _Largest() as largest:
        work(policy, anew(policy, layer))
    assert TOKENS < largest.most <= ROWS * TOKENS
