"""How often the host waits for the device. On a GPU each time costs what was launched ahead, so a
decoding step has none; and a layer's compression a number of them that is known.

Counted on a CPU, where a wait takes no time, by the operators that hand numbers to the host or make
tensors whose shapes depend on numbers.
"""

from typing import ClassVar

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaForCausalLM

import foveate
from foveate.hf.layer.stats import Stopwatch
from foveate.hf.model.internals import CACHE
from tests import zoo
from tests.zoo.text_models import llama_config

ASK = {
    torch.ops.aten._local_scalar_dense.default,  # item(), int(), float(), bool()
    torch.ops.aten.equal.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten.masked_select.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.repeat_interleave.Tensor,
    torch.ops.aten._unique2.default,
    torch.ops.aten.unique_dim.default,
}
COPY = {torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.cpu}


class _Operators(TorchDispatchMode):
    def __init__(self, found):
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        by_mask = func in (torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default) and any(
            t is not None and t.dtype == torch.bool for t in args[1]
        )
        if func in ASK or by_mask:
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


class _Copies(TorchFunctionMode):
    def __init__(self, found):
        super().__init__()
        self.found = found

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in COPY:
            self.found.append(func.__name__)
        return func(*args, **(kwargs or {}))


def waits(work):
    """The names of what waits in it."""
    found = []
    with _Operators(found), _Copies(found):
        work()
    return found


@pytest.mark.parametrize(
    ("work", "count"),
    [
        (lambda t: t.sum().item(), 1),
        (lambda t: bool((t > 0).all()), 1),
        (lambda t: t.tolist(), 1),
        (lambda t: t[t > 0], 1),
        (lambda t: t.nonzero(), 1),
        (lambda t: torch.equal(t, t), 1),
        (lambda t: t[:, :2].cumsum(-1).gather(1, torch.zeros(3, 1, dtype=torch.long)), 0),
    ],
)
def test_what_waits_is_counted(work, count):
    assert len(waits(lambda: work(torch.ones(3, 3)))) == count


KEEPING = (
    "snapkv:budget=50%,window=4",
    "adakv:budget=50%,window=4",
    "csp:budget=50%,decode_n=1.0",
    "h2o:budget=50%,when=over_budget",
    "prefixkv:budget=50%,distance=6",
    "prefixkv:budget=50%,distance=6,counted_from=newest",
)


@pytest.mark.parametrize("spec", KEEPING)
@torch.no_grad()
def test_a_decoding_step_waits_for_nothing(spec):
    model, token = zoo.build("llama"), torch.tensor([[33]])
    with foveate.compress(model, spec) as session:
        cache = session.prefill(**zoo.prompt("llama"))
        for _ in range(4):
            assert waits(lambda: model(input_ids=token, **{CACHE: cache})) == []


def of_layers(count):
    """A Llama of so many layers."""
    config = llama_config()
    config.num_hidden_layers = count
    return LlamaForCausalLM(config).eval()


@pytest.mark.parametrize(
    ("spec", "most"),
    [("snapkv:budget=50%,window=4", 13), ("adakv:budget=50%,window=4", 21), ("h2o:budget=50%", 14)],
)
@torch.no_grad()
def test_a_layers_compression_waits_no_oftener(spec, most):
    """What one layer more adds; what all layers share is asked once."""

    def prefill(layers):
        with foveate.compress(of_layers(layers), spec) as session:
            return waits(lambda: session.prefill(**zoo.prompt("llama")))

    few, many = prefill(2), prefill(4)
    assert 0 < len(many) - len(few) <= 2 * most, many


class Mark:
    """An event of a GPU that does its work when it is waited for, 3 ms between two."""

    made: ClassVar[list] = []

    def __init__(self, *, enable_timing):
        assert enable_timing
        self.passed = False
        self.made.append(self)

    def record(self, stream):
        assert stream == "stream"

    def query(self):
        return self.passed

    def synchronize(self):
        for one in self.made:
            one.passed = True

    def elapsed_time(self, other):
        assert (self.passed, other.passed) == (True, True)
        return 3.0


def test_time_on_a_gpu_is_waited_for_when_it_is_asked_for(monkeypatch):
    device = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "Event", Mark)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda of: {device: "stream"}[of])
    monkeypatch.setattr(torch.cuda, "synchronize", None)  # to call it would fail
    watch = Stopwatch()
    for _ in range(4):
        with watch.running(device):
            pass
    assert not any(mark.passed for mark in Mark.made)
    assert watch.seconds == pytest.approx(0.012)
    with watch.running(device):
        pass
    assert watch.seconds == pytest.approx(0.015)
