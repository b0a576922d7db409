"""Every index is of 64 bits: which others an operator of PyTorch takes goes by its release."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import foveate
from tests import zoo
from tests.conformance.compare import GREEDY

BY_INDEX = {  # and which argument it is
    **dict.fromkeys(("gather", "scatter", "scatter_", "scatter_add", "scatter_add_"), 2),
    **dict.fromkeys(("scatter_reduce", "scatter_reduce_", "index_select", "index_copy_"), 2),
    **dict.fromkeys(("index_add", "index_add_", "index_fill_"), 2),
    **dict.fromkeys(("index", "index_put", "index_put_", "_index_put_impl_", "embedding"), 1),
}


class _Indices(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.found, self.others = 0, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.partition("::")[2]
        if name in BY_INDEX:
            given = args[BY_INDEX[name]]
            for index in given if isinstance(given, list | tuple) else [given]:
                if index is None:
                    continue
                self.found += 1
                if index.dtype not in (torch.int64, torch.bool):
                    self.others.add((name, index.dtype))
        return func(*args, **(kwargs or {}))


SPECS = [  # every storage, and rules that go by positions and images
    "snapkv:budget=16,window=4",
    "adakv+mixkv:budget=16,window=4",
    "h2o:budget=16,when=over_budget",
    "csp:budget=50%,decode_n=1.5,when=over_budget",
    "adakv+kivi(bits=4,group=4):budget=16,window=4",
    "prefixkv:budget=50%,merging=position",
    "think:budget=50%,window=4",
    "finch:budget=50%,window=4",
]


@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.parametrize("spec", SPECS)
def test_every_index_is_of_64_bits(spec, beams):
    inputs = zoo.prompt("llava", lengths=(31, 40))
    with foveate.compress(zoo.build("llava"), spec), _Indices() as indices:
        zoo.build("llava").generate(**inputs, **GREEDY, num_beams=beams)
    assert indices.found
    assert not indices.others
