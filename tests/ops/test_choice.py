"""Which implementation runs, and that nothing falls back."""

import importlib.util
import sys

import pytest
import torch

import foveate
from foveate.errors import InvalidParameter, MissingPackage, UnsupportedKernel
from foveate.ops.choice import chosen
from foveate.ops.compaction import compaction
from foveate.ops.window_attention import window_attention
from tests.core.users import unchecked

triton_or_skip = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="there is no Triton for this system"
)


def call(dtype=torch.float32, d=16, **how):
    q = torch.zeros(1, 1, 2, d, dtype=dtype)
    return window_attention(q, q, torch.ones(1, 1, 2, 2, dtype=torch.bool), 1.0, **how)


def test_the_reference_is_the_default():
    assert chosen() == "reference"


@triton_or_skip
def test_a_choice_holds_inside_its_block_alone_even_if_that_fails():
    with foveate.ops.using("triton"):
        assert chosen() == "triton"
        with pytest.raises(ZeroDivisionError), foveate.ops.using("reference"):
            raise ZeroDivisionError
        with foveate.ops.using("reference"):
            assert chosen() == "reference"
        assert chosen() == "triton"
        assert chosen("reference") == "reference"
    assert chosen() == "reference"


def test_an_unknown_name_is_refused():
    with unchecked():
        with pytest.raises(InvalidParameter, match=r"'cuda': choose 'reference' or 'triton'"):
            call(impl="cuda")
        with pytest.raises(InvalidParameter, match="'cuda'"), foveate.ops.using("cuda"):
            pass


def test_triton_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPackage, match="pip install triton"):
        call(impl="triton")
    with pytest.raises(MissingPackage, match="triton"), foveate.ops.using("triton"):
        pass


@triton_or_skip
def test_a_cpu_without_the_interpreter_is_refused(monkeypatch):
    from foveate.ops.kernels import launch

    monkeypatch.setattr(launch, "INTERPRETED", False)
    with pytest.raises(UnsupportedKernel, match=r"on cpu.*impl='reference' for window_attention"):
        call(impl="triton")


@triton_or_skip
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"dtype": torch.float64}, "torch.float64 is none of float32"),
        ({"d": 257}, "head size 257 is not within 1 to 256"),
    ],
)
def test_types_and_head_sizes_that_no_kernel_does_are_refused(how, message):
    with pytest.raises(UnsupportedKernel, match=message):
        call(**how, impl="triton")


@triton_or_skip
def test_tensors_of_different_kinds_are_refused():
    k, kept = torch.zeros(1, 1, 2, 16), torch.ones(1, 1, 2, dtype=torch.bool)
    columns, counts = torch.arange(2).expand(1, 1, 2), torch.tensor([[2]])
    with pytest.raises(UnsupportedKernel, match=r"torch\.float32 on cpu, torch\.float16 on cpu"):
        compaction(k, k.half(), columns, kept, counts, impl="triton")
    with pytest.raises(UnsupportedKernel, match="on meta"):
        compaction(k, k, columns, kept.to("meta"), counts, impl="triton")
